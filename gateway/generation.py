"""The handlers that generate or count: messages, chat completions, count_tokens.

Owns the order of checks before work: readiness, key, headers, body, model, fields, length. Called
through the routes of `app.py`.
"""

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.answers import json_answer
from gateway.auth import authenticate, identity_of
from gateway.call import Call, call_of
from gateway.delivery import StreamedReply, WholeReply
from gateway.deps import Deps
from gateway.errors import ModelUnknown, Overloaded
from gateway.live_reply import LiveReply
from schemas.assembler import Assembler
from schemas.dialects import anthropic, openai
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest, shown
from schemas.ids import show_reply_id
from schemas.operations import KeyCreated
from schemas.requests import Dialect

__all__ = ["admit", "chat_completions", "count_tokens", "messages", "require_model"]

_NOT_YET = ("idempotency-key", "last-event-id")


async def messages(request: Request, deps: Deps) -> ASGIApp:
    """POST /v1/messages."""
    key = admit(request, deps)
    version = _check_headers(request.headers, Dialect.ANTHROPIC)
    body = await _body(request, deps)
    return await _generate(request, deps, key, anthropic.parse(body, version))


async def chat_completions(request: Request, deps: Deps) -> ASGIApp:
    """POST /v1/chat/completions."""
    key = admit(request, deps)
    version = _check_headers(request.headers, Dialect.OPENAI)
    body = await _body(request, deps)
    return await _generate(request, deps, key, openai.parse(body, version))


async def count_tokens(request: Request, deps: Deps) -> Response:
    """POST /v1/messages/count_tokens."""
    admit(request, deps)
    version = _check_headers(request.headers, Dialect.ANTHROPIC)
    body = await _body(request, deps)
    canonical = anthropic.parse_count(body, version)
    tokens = await deps.prompts.tokens(canonical.messages)
    return json_answer({"input_tokens": len(tokens)})


def admit(request: Request, deps: Deps) -> KeyCreated:
    """Return the key of a call. Raises Overloaded while starting, NotAuthenticated."""
    call = call_of(request.scope)
    unready = deps.unready()
    if unready is not None:
        raise Overloaded(f"Overloaded: {unready}")
    key = authenticate(request.headers, deps.control.keys)
    call.identity = identity_of(key, None)
    return key


def require_model(model: str, deps: Deps) -> None:
    """Let requests for the served model pass. Raises ModelUnknown, which lists the right ids."""
    served = deps.model.alias
    if model != served:
        raise ModelUnknown(f"model: {shown(model)} (this platform serves: {served})")


def _check_headers(headers: Headers, dialect: Dialect) -> str:
    """Return the dialect's version. Raises InvalidRequest."""
    version = "v1"
    if dialect is Dialect.ANTHROPIC:
        version = anthropic.check_version(headers.get("anthropic-version"))
    for name in _NOT_YET:
        if name in headers:
            raise InvalidRequest(name, "not supported yet")
    return version


async def _body(request: Request, deps: Deps) -> object:
    body = await deps.bodies.read_json(request.headers, request.receive)
    model = body.get("model") if isinstance(body, dict) else None
    if isinstance(model, str) and model:
        call_of(request.scope).model = shown(model)
        require_model(model, deps)
    return body


async def _generate(
    request: Request, deps: Deps, key: KeyCreated, canonical: CanonicalRequest
) -> ASGIApp:
    call = call_of(request.scope)
    call.stream = canonical.stream
    identity = identity_of(key, canonical.user)
    tokens = await deps.prompts.tokens(canonical.messages)
    reply = await deps.submission.submit(canonical, tokens, identity, call.request_id)
    call.prompt_tokens = len(tokens)
    return _deliver(call, deps, reply)


def _deliver(call: Call, deps: Deps, reply: LiveReply) -> ASGIApp:
    request = reply.request
    reply_id = show_reply_id(
        request.header.dialect.value,
        request.locator,
        call.request_id,
        request.identity.org,
        request.identity.workspace,
        deps.locator_key,
    )
    assembler = Assembler(request.header, reply_id, deps.prompts.decoder)
    form = StreamedReply if request.header.stream else WholeReply
    return form(call, deps, reply, assembler)
