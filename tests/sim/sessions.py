"""One connection of a simulated client to a gateway: ask, read, note what came.

Drives the product's own handlers and deliveries through ASGI messages, as a client that may read
slowly or leave. Judges only that no token was sent before the log accepted it, and that a cancel
that was confirmed stands in the log.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, cast

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Scope

from gateway.call import CONNECTION_EXTENSION, Call, call_of
from gateway.cursor import read_cursor
from gateway.delivery import deliver
from gateway.errors import ClientGone, Overloaded, Refused, ReplyBroken, show
from gateway.keyed import KeyedRequest
from gateway.resumption import cancel, retrieve
from schemas.requests import Dialect
from tests.sim.checks import Checks
from tests.sim.clients import Client, Manner, Visit, cursor_of
from tests.sim.gateways import SimGateway, secret_of

_PATHS = {Dialect.ANTHROPIC: "/v1/messages", Dialect.OPENAI: "/v1/chat/completions"}

HURRIED_S = 0.2
"""A client that comes back reads faster than one that was cut for its slowness."""


class Session:
    """One visit, as a task of the gateway's process."""

    def __init__(self, client: Client, visit: Visit, gateway: SimGateway, checks: Checks) -> None:
        self._client = client
        self._visit = visit
        self._gateway = gateway
        self._checks = checks
        self._gone = asyncio.Event()
        self._on_left: Callable[[], None] | None = None
        self._sends = 0

    async def run(self) -> None:
        """Ask, read, note the answer."""
        visit = self._visit
        try:
            await self._exchange()
            visit.answer = "gone" if visit.cut else "complete"
        except Refused as error:
            visit.answer, visit.status = "refused", show(error).status
        except ReplyBroken as error:
            visit.answer, visit.status = "error", show(error).status
        except ClientGone:
            visit.answer = "gone"
        except asyncio.CancelledError:
            visit.answer = "reset"
            raise

    @property
    def _leaves(self) -> bool:
        """Tell whether the client leaves this time."""
        client = self._client
        return not self._visit.again and len(client.told()) <= client.leaves

    async def _exchange(self) -> None:
        client, visit = self._client, self._visit
        if client.leaves_after_s is not None and self._leaves:
            loop = self._checks.platform.loop
            loop.call_later(client.leaves_after_s, self._leave)
        scope = scope_of_call(self._gateway, client, "GET" if visit.by_id else "POST", visit.by_id)
        if visit.after is not None:
            scope["headers"].append((b"last-event-id", visit.after.encode()))
        scope["extensions"] = {CONNECTION_EXTENSION: self}
        Call.begin(scope, visit.request_id, self._gateway.life.clock.monotonic_s())
        response = await self._ask(scope)
        visit.reply = cast(Any, response)._reply
        await response(scope, self._receive, self._send)

    async def _ask(self, scope: Scope) -> ASGIApp:
        """Do what the product's handlers do with the request."""
        client, visit, gateway = self._client, self._visit, self._gateway
        question, deps = client.question, gateway.deps
        if visit.by_id is not None:
            return await retrieve(Request(scope, self._receive), deps)
        unready = gateway.unready()
        if unready is not None:
            raise Overloaded(f"Overloaded: {unready}")
        call, stream = call_of(scope), client.stream
        if client.manner is not Manner.KEYED:
            reply = await deps.submission.submit(
                question.canonical,
                question.prompt,
                question.identity,
                visit.request_id,
                resumable=client.manner is Manner.RESUMABLE,
            )
            return deliver(call, deps, reply, stream=stream)
        after = read_cursor(visit.after)
        keyed = await deps.keyed.submit(
            KeyedRequest(
                scope=question.scope,
                fingerprint=question.fingerprint,
                canonical=question.canonical,
                prompt_token_ids=question.prompt,
                identity=question.identity,
                request_id=visit.request_id,
                only_resume=after is not None,
            )
        )
        visit.replayed = keyed.replayed
        return deliver(call, deps, keyed.reply, stream=stream, after=after, replayed=keyed.replayed)

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._visit.status = message["status"]
            return
        if self._pause_s:
            await asyncio.sleep(self._pause_s)
        self.write(bytes(message["body"]))

    # --- as a `gateway.call.Connection`

    @property
    def has_body(self) -> bool:
        """It sends none."""
        return True

    @property
    def is_clogged(self) -> bool:
        """Tell whether the client reads slowly."""
        return bool(self._pause_s)

    @property
    def _pause_s(self) -> float:
        client = self._client
        return client.pause_s if len(client.visits) == 1 else min(client.pause_s, HURRIED_S)

    def answer(self, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Leave it to the messages."""
        return False

    def abort(self) -> None:
        """Break the connection: the client sees that it has gone."""
        self._leave()

    def when_left(self, call: Callable[[], None] | None) -> None:
        """Call back when the client leaves."""
        self._on_left = call
        if call is not None and self._gone.is_set():
            call()

    def _leave(self) -> None:
        self._gone.set()
        self._visit.ended_s = self._visit.ended_s or self._checks.platform.now_s()
        if self._on_left is not None:
            self._on_left()

    def write(self, body: bytes) -> None:
        """Take a piece of the body."""
        client, visit = self._client, self._visit
        self._sends += 1
        if client.stream:
            self._check_cursor(body)
        if self._leaves and client.leaves_after_sends == self._sends:
            self._leave()
            if client.cuts and client.stream:
                visit.cut, body = True, body[: len(body) // 2]
        elif visit.cut:
            return  # the connection is broken: nothing comes through any more
        visit.body.append(body)
        client.learn(visit)

    def _check_cursor(self, body: bytes) -> None:
        """No event may come before the log has accepted its tokens."""
        at = body.rfind(b"\nid: ")
        if at < 0 and not body.startswith(b"id: "):
            return
        tokens = int(cursor_of(body[max(0, at) :].lstrip(b"\n")).split("-")[0])
        request = self._visit.request
        assert request is not None, "it reads a reply"
        accepted = self._checks.judge.accepted(request.request_id)
        if tokens > accepted:
            text = f"was sent {tokens} tokens, {accepted} accepted"
            self._checks.fail("I15", request.request_id, text)


def scope_of_call(gateway: SimGateway, client: Client, method: str, reply_id: str | None) -> Scope:
    """Return the ASGI scope of one call of a client."""
    dialect = client.question.canonical.dialect
    stream = b"text/event-stream" if client.stream else b"application/json"
    return {
        "type": "http",
        "method": method,
        "path": _PATHS[dialect],
        "path_params": {"reply_id": reply_id},
        "query_string": b"",
        "headers": [
            (b"x-api-key", secret_of(client.question.identity.org).encode()),
            (b"accept", stream),
        ],
        "state": {},
    }


async def ask_to_cancel(
    client: Client, gateway: SimGateway, checks: Checks, request_id: str
) -> None:
    """Cancel a client's reply through the product's handler; a confirmed one has ended."""
    assert client.reply_id is not None, "only a reply that it knows"
    scope = scope_of_call(gateway, client, "POST", client.reply_id)
    Call.begin(scope, client.request_id, gateway.life.clock.monotonic_s())
    try:
        await cancel(Request(scope), gateway.deps)
    except Refused:
        return
    reply = checks.judge.replies.get(request_id)
    if reply is None or not reply.ended:
        checks.fail("I14", request_id, "its cancel was confirmed, and it has not ended")
    checks.platform.events.fired["client.cancelled"] += 1
