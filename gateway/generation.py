"""The handlers that generate or count: messages, chat completions, count_tokens.

Owns the order of checks before work: readiness, key, headers, body, model, fields, length. Called
through the routes of `app.py`.
"""

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.answers import json_answer
from gateway.auth import authenticate, identity_of
from gateway.call import call_of
from gateway.cursor import Cursor, read_cursor
from gateway.delivery import deliver
from gateway.deps import Deps
from gateway.errors import ModelUnknown, Overloaded
from gateway.idempotency import fingerprint_of, read_key, scope_of
from gateway.keyed import KeyedRequest
from schemas import limits
from schemas.dialects import anthropic, openai
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest, shown
from schemas.operations import KeyCreated
from schemas.requests import Dialect

__all__ = ["admit", "chat_completions", "count_tokens", "messages", "require_model"]

_INLINE_BYTES_MAX = 256 * limits.KIB
"""Longer bodies are fingerprinted in a thread."""
_RESUMABLE = "millstream-resumable"


async def messages(request: Request, deps: Deps) -> ASGIApp:
    """POST /v1/messages."""
    key = admit(request, deps)
    version = _check_headers(request.headers, Dialect.ANTHROPIC)
    body = await _body(request, deps)
    wish = await _wish(request, body, version)
    return await _generate(request, deps, key, anthropic.parse(body, version), wish)


async def chat_completions(request: Request, deps: Deps) -> ASGIApp:
    """POST /v1/chat/completions."""
    key = admit(request, deps)
    version = _check_headers(request.headers, Dialect.OPENAI)
    body = await _body(request, deps)
    wish = await _wish(request, body, version)
    return await _generate(request, deps, key, openai.parse(body, version), wish)


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
    return version


async def _body(request: Request, deps: Deps) -> object:
    body = await deps.bodies.read_json(request.headers, request.receive)
    model = body.get("model") if isinstance(body, dict) else None
    if isinstance(model, str):
        call_of(request.scope).model = shown(model)
        require_model(model, deps)
    return body


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """What the headers ask for beyond the body."""

    key: str | None
    fingerprint: str
    """Empty without a key."""
    resumable: bool
    after: Cursor | None


async def _wish(request: Request, body: object, version: str) -> _Wish:
    """Read the headers of idempotency and resumption. Raises InvalidRequest."""
    headers, call = request.headers, call_of(request.scope)
    after = read_cursor(headers.get("last-event-id"))
    resumable = headers.get(_RESUMABLE, "false").strip().lower()
    if resumable not in ("true", "false"):
        raise InvalidRequest(_RESUMABLE, "expected true or false")
    value = headers.get("idempotency-key")
    if value is None:
        if after is not None:
            raise InvalidRequest("last-event-id", "a POST resumes with the idempotency-key it had")
        return _Wish(key=None, fingerprint="", resumable=resumable == "true", after=None)
    key = read_key(value)
    path = call.route.replace("/v1/v1/", "/v1/")  # one endpoint, however it is spelled
    if int(headers.get("content-length", "0") or 0) <= _INLINE_BYTES_MAX:
        fingerprint = fingerprint_of(call.method, path, version, body)
    else:
        fingerprint = await asyncio.to_thread(fingerprint_of, call.method, path, version, body)
    return _Wish(key=key, fingerprint=fingerprint, resumable=True, after=after)


async def _generate(
    request: Request, deps: Deps, key: KeyCreated, canonical: CanonicalRequest, wish: _Wish
) -> ASGIApp:
    call = call_of(request.scope)
    call.stream = canonical.stream
    identity = identity_of(key, canonical.user)
    tokens = await deps.prompts.tokens(canonical.messages)
    if wish.key is None:
        reply = await deps.submission.submit(
            canonical, tokens, identity, call.request_id, resumable=wish.resumable
        )
        call.prompt_tokens = len(tokens)
        return deliver(call, deps, reply, stream=canonical.stream)
    keyed = await deps.keyed.submit(
        KeyedRequest(
            scope=scope_of(key.org, key.workspace, wish.key),
            fingerprint=wish.fingerprint,
            canonical=canonical,
            prompt_token_ids=tokens,
            identity=identity,
            request_id=call.request_id,
            only_resume=wish.after is not None,
        )
    )
    deps.metrics.count("keyed_requests", replayed=str(keyed.replayed).lower())
    call.prompt_tokens = 0 if keyed.replayed else len(tokens)
    return deliver(
        call,
        deps,
        keyed.reply,
        stream=canonical.stream,
        after=wish.after,
        replayed=keyed.replayed,
    )
