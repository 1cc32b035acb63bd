"""The handlers of replies that run or ran already: get one whole, resume its stream, cancel it.

Owns what a reply id and a cursor mean in HTTP. Reading is `reply_tails.py`, delivery the same as
for a first answer (`delivery.py`). Called through the routes of `app.py`.
"""

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.answers import json_answer
from gateway.call import Call, call_of
from gateway.cursor import read_cursor, read_sequence
from gateway.delivery import deliver
from gateway.deps import Deps
from gateway.errors import Overloaded, ReplyUnknown
from gateway.generation import admit
from gateway.reader import Followed, Told
from schemas import limits
from schemas.dialects.canonical import InvalidRequest
from schemas.fold import Origin
from schemas.ids import InvalidId, read_reply_id
from schemas.operations import KeyCreated
from schemas.replies import CloseReason
from schemas.requests import Dialect
from schemas.topics import REPLIES

__all__ = ["cancel", "retrieve"]

_KINDS = {
    Dialect.ANTHROPIC: ("type", "message"),
    Dialect.OPENAI: ("object", "chat.completion"),
    Dialect.COMPLETIONS: ("object", "text_completion"),
    Dialect.RESPONSES: ("object", "response"),
}


async def retrieve(request: Request, deps: Deps) -> ASGIApp:
    """GET /v1/messages/{id}, and the like: whole, or the rest of the stream."""
    call = call_of(request.scope)
    key = admit(call, deps)
    followed = await _find(request, deps, key)
    after = read_cursor(call.headers.get("last-event-id"))
    counted = after is None and call.dialect is Dialect.RESPONSES
    had = read_sequence(request.query_params.get("starting_after")) if counted else 0
    call.stream = _wants_stream(request)
    call.model = followed.request.header.model_shown
    tail = deps.tails.tail_of(followed.request.locator)
    reply = deps.submission.open(followed, tail)
    return deliver(call, deps, reply, stream=call.stream, after=after, events_had=had, resumed=True)


def _wants_stream(request: Request) -> bool:
    """Tell how a reply is to be sent: by `accept`, or by `stream=true` as OpenAI's SDK asks.

    Raises: InvalidRequest where `stream` is neither true nor false.
    """
    stream = request.query_params.get("stream", "false")
    if stream not in ("true", "false"):
        raise InvalidRequest("stream", "Input should be 'true' or 'false'")
    return stream == "true" or "text/event-stream" in request.headers.get("accept", "")


async def cancel(request: Request, deps: Deps) -> Response:
    """POST /v1/messages/{id}/cancel, and the like.

    Answers once the end stands in the log; a reply that had ended before stays as it is.
    """
    call = call_of(request.scope)
    key = admit(call, deps)
    followed = await _find(request, deps, key)
    deps.closer.close(followed, CloseReason.CANCELLED, "cancelled by the client")
    try:
        async with asyncio.timeout(limits.CLOSE_READ_BACK_MS / 1000):
            await followed.ended.wait()
    except TimeoutError:
        raise Overloaded("Overloaded: the end cannot be confirmed yet; ask again") from None
    return json_answer(_outcome(call, request.path_params["reply_id"], followed))


async def _find(request: Request, deps: Deps, key: KeyCreated) -> Followed:
    """Return the reply that the path names. Raises ReplyUnknown, Overloaded."""
    reply_id, call = request.path_params["reply_id"], call_of(request.scope)
    try:
        locator, request_id = read_reply_id(reply_id, key.org, key.workspace, deps.locator_key)
    except InvalidId as error:
        raise ReplyUnknown("no such reply") from error
    if locator.incarnation != deps.control.incarnation(REPLIES):
        raise ReplyUnknown("the reply is not kept any more")

    def told(origin: Origin | None) -> Told:
        if origin is None:
            raise ReplyUnknown("no such reply")
        created_ms = origin.header.created_ms
        return Told(
            request_id=request_id,
            locator=locator,
            header=origin.header,
            identity=origin.identity,
            placement=origin.placement,
            admit_by_ms=created_ms + deps.model.admit_within_ms,
            # A guest must not cut short what another gateway, configured differently, promised.
            deadline_ms=created_ms + max(deps.model.deadline_ms, limits.DEADLINE_MS),
        )

    followed = await deps.tails.find(request_id, locator, told)
    if followed.request.header.dialect is not call.dialect:
        raise ReplyUnknown("no such reply")
    return followed


def _outcome(call: Call, reply_id: str, followed: Followed) -> dict[str, object]:
    end = followed.fold.end
    assert end is not None, "waited for"
    status = "completed" if end.close_reason is None else end.close_reason.value
    kind, name = _KINDS[call.dialect]
    return {"id": reply_id, kind: name, "status": status}
