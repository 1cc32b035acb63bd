"""The handlers that tell: models, the API's description, usage totals, health, metrics, root.

Owns no state; reads what `deps` shows. Called through the routes of `app.py`.
"""

from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from gateway.answers import json_answer
from gateway.auth import require_admin
from gateway.call import call_of
from gateway.compression import compressed
from gateway.deps import Deps
from gateway.drafting import require_model
from gateway.generation import admit
from gateway.openapi import openapi_document
from infra.health import METRICS_TYPE
from schemas.dialects.models import model_list, model_object

__all__ = [
    "health",
    "list_models",
    "metrics",
    "openapi",
    "ready",
    "retrieve_model",
    "root",
    "usage_totals",
]


async def list_models(request: Request, deps: Deps) -> Response:
    """GET /v1/models."""
    admit(call_of(request.scope), deps)
    return json_answer(model_list([deps.card], request.query_params))


async def retrieve_model(request: Request, deps: Deps) -> Response:
    """GET /v1/models/{id}."""
    admit(call_of(request.scope), deps)
    require_model(request.path_params["model_id"], deps.model.alias)
    return json_answer(model_object(deps.card))


async def openapi(request: Request, deps: Deps) -> Response:
    """GET /v1/openapi.json: needs no key, as it tells nothing about this platform's users."""
    document = msgspec.json.encode(openapi_document(version("millstream"), deps.model.alias))
    body, encoding = await compressed(document, call_of(request.scope).accept_encoding)
    answer = Response(body, media_type="application/json")
    answer.raw_headers.extend(encoding)
    return answer


async def usage_totals(request: Request, deps: Deps) -> Response:
    """GET /admin/v1/usage-totals."""
    require_admin(admit(call_of(request.scope), deps))
    return json_answer({"data": deps.totals.rows()})


async def root(_request: Request, deps: Deps) -> Response:
    """GET and HEAD /."""
    return json_answer({"name": "millstream", "models": [deps.model.alias]})


async def health(_request: Request, _deps: Deps) -> Response:
    """GET /health: this process answers."""
    return PlainTextResponse("healthy\n")


async def ready(_request: Request, deps: Deps) -> Response:
    """GET /ready: this gateway serves requests."""
    unready = deps.unready()
    if unready is None:
        return PlainTextResponse("ready\n")
    return PlainTextResponse(f"not ready: {unready}\n", 503)


async def metrics(_request: Request, deps: Deps) -> Response:
    """GET /metrics: Prometheus's text format."""
    deps.metrics.gauge("requests_open", deps.submission.open_count)
    deps.metrics.gauge("replies_orphaned", deps.orphans.count)
    return Response(deps.metrics.expose(), media_type=METRICS_TYPE)
