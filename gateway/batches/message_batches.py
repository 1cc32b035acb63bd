"""The handlers of Anthropic's Message Batches: make, list, get, cancel, delete, results.

Owns the batch object and what each call answers. Called through the routes of `app.py`.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive

from gateway.answers import json_answer
from gateway.batches.book import Batch
from gateway.batches.line_stream import LineStream
from gateway.batches.paging import page_of
from gateway.batches.rendering import result_line
from gateway.batches.service import KeyUse, Order
from gateway.call import Call, call_of
from gateway.deps import Deps
from gateway.errors import BatchUnknown
from gateway.generation import admit, version_of
from gateway.idempotency import read_key
from gateway.limiting import require_month
from schemas import limits
from schemas.batches import BatchEnded
from schemas.dialects.anthropic_batches import read_batch, rfc3339
from schemas.dialects.canonical import InvalidRequest
from schemas.requests import Dialect

__all__ = ["cancel", "create", "delete", "listed", "results", "retrieve"]

_PATH: Final = "/v1/messages/batches"
_ENDPOINT: Final = "/v1/messages"
_MEDIA_TYPE: Final = "application/x-jsonl"
_HOST: Final = re.compile(r"[A-Za-z0-9.:_\-\[\]]{1,255}")
_PAGE_LIMIT: Final = 20
_PAGE_LIMIT_MAX: Final = 1_000


async def create(call: Call, receive: Receive, deps: Deps) -> Response:
    """POST /v1/messages/batches."""
    key = admit(call, deps)
    version = version_of(call)
    require_month(deps.control.limits.get(key.org), deps.totals, deps.clock.now_ms())
    deps.batches.require_room()
    body = await deps.bodies.read_bytes(
        call.headers,
        receive,
        bytes_max=limits.BATCH_BODY_BYTES_MAX,
        within_ms=limits.BATCH_BODY_READ_MS,
    )
    try:
        key_use = await _key_use(call, version, body)
        lines = await asyncio.to_thread(read_batch, body)
        batch, replayed = await deps.batches.create(
            Order(
                key=key,
                dialect=Dialect.ANTHROPIC,
                version=version,
                endpoint=_ENDPOINT,
                lines=lines,
                item_count=len(lines),
                key_use=key_use,
            )
        )
    finally:
        deps.bodies.release(body)
    answer = json_answer(_shown(call, deps, batch))
    if replayed:
        answer.headers["idempotent-replayed"] = "true"
    return answer


async def listed(request: Request, deps: Deps) -> Response:
    """GET /v1/messages/batches."""
    call = call_of(request.scope)
    batches = await deps.batches.newest(admit(call, deps), Dialect.ANTHROPIC)
    page = page_of(
        batches,
        lambda batch: batch.created.batch_id,
        request.query_params,
        after="after_id",
        before="before_id",
        limit=_PAGE_LIMIT,
        limit_max=_PAGE_LIMIT_MAX,
    )
    data = [_shown(call, deps, batch) for batch in page.entries]
    return json_answer(
        {
            "data": data,
            "has_more": page.has_more,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
        }
    )


async def retrieve(request: Request, deps: Deps) -> Response:
    """GET /v1/messages/batches/{id}."""
    call = call_of(request.scope)
    return json_answer(_shown(call, deps, await _find(request, deps)))


async def cancel(request: Request, deps: Deps) -> Response:
    """POST /v1/messages/batches/{id}/cancel: may be repeated, and changes nothing after the end."""
    batch = await _find(request, deps)
    await deps.batches.cancel(batch)
    return json_answer(_shown(call_of(request.scope), deps, batch))


async def delete(request: Request, deps: Deps) -> Response:
    """DELETE /v1/messages/batches/{id}."""
    batch = await _find(request, deps)
    if batch.ended is None:
        raise InvalidRequest("", "the batch has not ended: cancel it first")
    await deps.batches.delete(batch)
    return json_answer({"id": batch.created.batch_id, "type": "message_batch_deleted"})


async def results(request: Request, deps: Deps) -> ASGIApp:
    """GET /v1/messages/batches/{id}/results."""
    batch = await _find(request, deps)
    if batch.ended is None:
        raise BatchUnknown("the batch has not ended: it has no results yet")
    gone = BatchUnknown("the results are not kept any more")
    if not deps.batches.results_kept(batch.created.created_ms):
        raise gone
    return LineStream(
        call_of(request.scope),
        deps,
        _lines(deps, batch, batch.ended),
        media_type=_MEDIA_TYPE,
        place=deps.batches.reading(),
        gone=gone,
    )


async def _find(request: Request, deps: Deps) -> Batch:
    key = admit(call_of(request.scope), deps)
    return await deps.batches.find(key, request.path_params["batch_id"], Dialect.ANTHROPIC)


async def _key_use(call: Call, version: str, body: bytearray) -> KeyUse | None:
    """Return the idempotency key of a call; any other body under it is another request."""
    value = call.headers.get("idempotency-key")
    if value is None:
        return None
    key = read_key(value)
    return KeyUse(key=key, fingerprint=await asyncio.to_thread(_fingerprint, version, body))


def _fingerprint(version: str, body: bytearray) -> str:
    return hashlib.sha256(version.encode() + b"\n" + body).hexdigest()


async def _lines(deps: Deps, batch: Batch, ended: BatchEnded) -> AsyncGenerator[bytes, None]:
    created = batch.created
    async with aclosing(deps.batches.results.read(created, ended.results_end)) as reading:
        async for items in reading:
            yield b"".join(result_line(created.batch_id, item) for item in items)


def _shown(call: Call, deps: Deps, batch: Batch) -> dict[str, object]:
    """Return the batch object."""
    created, ended, counts = batch.created, batch.ended, batch.counts
    kept = deps.batches.results_kept(created.created_ms)
    status = "in_progress" if batch.cancel_ms is None else "canceling"
    return {
        "id": created.batch_id,
        "type": "message_batch",
        "processing_status": status if ended is None else "ended",
        "request_counts": {
            "processing": counts.processing,
            "succeeded": counts.succeeded,
            "errored": counts.errored,
            "canceled": counts.canceled,
            "expired": counts.expired,
        },
        "created_at": rfc3339(created.created_ms),
        "expires_at": rfc3339(created.expires_ms),
        "ended_at": None if ended is None else rfc3339(ended.at_ms),
        "cancel_initiated_at": rfc3339(batch.cancel_ms),
        "archived_at": None if kept else rfc3339(created.created_ms + limits.BATCH_RESULTS_KEPT_MS),
        "results_url": _results_url(call, created.batch_id) if ended and kept else None,
    }


def _results_url(call: Call, batch_id: str) -> str:
    """Return where the results are, at the host that the client asked: it sends its key there.

    Without a host that is one, the path alone: clients take it as their own host's.
    """
    path = f"{_PATH}/{batch_id}/results"
    host = call.headers.get("host", "")
    if not _HOST.fullmatch(host):
        return path
    secure = call.headers.get("x-forwarded-proto", "").strip().lower() == "https"
    return f"{'https' if secure else 'http'}://{host}{path}"
