"""The handlers of OpenAI's batches: make, list, get, cancel.

Owns the batch object and its status. Called through the routes of `app.py`.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from gateway.answers import json_answer
from gateway.batches.book import Batch
from gateway.batches.file_calls import openai_key, openai_page
from gateway.batches.files import Files, made_files
from gateway.batches.service import KeyUse, Order
from gateway.call import Call, call_of
from gateway.deps import Deps
from gateway.errors import FileUnknown
from gateway.idempotency import fingerprint_of, read_key
from gateway.limiting import require_month
from schemas.batches import Content
from schemas.dialects.canonical import InvalidRequest
from schemas.dialects.openai_batches import read_batch
from schemas.requests import Dialect

__all__ = ["cancel", "create", "listed", "retrieve"]

_VERSION = "v1"
_PAGE_LIMIT = 20
_PAGE_LIMIT_MAX = 100


async def create(call: Call, receive: Receive, deps: Deps) -> Response:
    """POST /v1/batches: the file is looked through later, when the batch is run."""
    key = openai_key(call, deps)
    require_month(deps.control.limits.get(key.org), deps.totals, deps.clock.now_ms())
    body = (await deps.bodies.read_json(call.headers, receive)).value
    wish = read_batch(body)
    try:
        file = await Files(deps.batches, deps.clock).find(key, wish.input_file_id)
    except FileUnknown as error:
        raise InvalidRequest("input_file_id", "there is no such file") from error
    if not isinstance(file.source, Content):
        raise InvalidRequest("input_file_id", "the file's purpose must be 'batch'")
    value = call.headers.get("idempotency-key")
    key_use = None
    if value is not None:
        fingerprint = fingerprint_of("POST", "/v1/batches", _VERSION, body)
        key_use = KeyUse(key=read_key(value), fingerprint=fingerprint)
    batch, replayed = await deps.batches.create(
        Order(
            key=key,
            dialect=Dialect.OPENAI,
            version=_VERSION,
            endpoint=wish.endpoint,
            input_id=wish.input_file_id,
            content=file.source,
            metadata=wish.metadata,
            key_use=key_use,
        )
    )
    answer = json_answer(_shown(batch))
    if replayed:
        answer.headers["idempotent-replayed"] = "true"
    return answer


async def listed(request: Request, deps: Deps) -> Response:
    """GET /v1/batches."""
    key = openai_key(call_of(request.scope), deps)
    shown = [_shown(batch) for batch in await deps.batches.newest(key, Dialect.OPENAI)]
    return openai_page(shown, request.query_params, limit=_PAGE_LIMIT, limit_max=_PAGE_LIMIT_MAX)


async def retrieve(request: Request, deps: Deps) -> Response:
    """GET /v1/batches/{id}."""
    return json_answer(_shown(await _find(request, deps)))


async def cancel(request: Request, deps: Deps) -> Response:
    """POST /v1/batches/{id}/cancel: may be repeated, and changes nothing after the end."""
    batch = await _find(request, deps)
    await deps.batches.cancel(batch)
    return json_answer(_shown(batch))


async def _find(request: Request, deps: Deps) -> Batch:
    key = openai_key(call_of(request.scope), deps)
    return await deps.batches.find(key, request.path_params["batch_id"], Dialect.OPENAI)


def _status(batch: Batch) -> str:
    ended = batch.ended
    if ended is not None and ended.faults:
        return "failed"
    if batch.cancel_ms is not None:
        return "cancelling" if ended is None else "cancelled"
    if ended is not None:
        return "expired" if ended.expired else "completed"
    return "validating" if batch.item_count is None else "in_progress"


def _shown(batch: Batch) -> dict[str, object]:
    """Return the batch object."""
    created, ended, status, counts = batch.created, batch.ended, _status(batch), batch.counts
    files = {file.file_id.rpartition("-")[2]: file.file_id for file in made_files(batch)}
    ended_s = None if ended is None else ended.at_ms // 1_000

    def when(name: str) -> int | None:
        return ended_s if status == name else None

    validated = batch.validated
    metadata = created.metadata
    return {
        "id": created.batch_id,
        "object": "batch",
        "endpoint": created.endpoint,
        "errors": _errors(batch),
        "input_file_id": created.input_id,
        "completion_window": "24h",
        "status": status,
        "output_file_id": files.get("output"),
        "error_file_id": files.get("error"),
        "created_at": created.created_ms // 1_000,
        "in_progress_at": None if validated is None else validated.at_ms // 1_000,
        "expires_at": created.expires_ms // 1_000,
        "finalizing_at": None if status == "failed" else ended_s,
        "completed_at": when("completed"),
        "failed_at": when("failed"),
        "expired_at": when("expired"),
        "cancelling_at": None if batch.cancel_ms is None else batch.cancel_ms // 1_000,
        "cancelled_at": when("cancelled"),
        "request_counts": {
            "total": batch.item_count or 0,
            "completed": counts.succeeded,
            "failed": counts.errored + counts.canceled + counts.expired,
        },
        "metadata": None if metadata is None else msgspec.json.decode(metadata),
    }


def _errors(batch: Batch) -> dict[str, object] | None:
    if batch.ended is None or not batch.ended.faults:
        return None
    return {"object": "list", "data": list(batch.ended.faults)}
