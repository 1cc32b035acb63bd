"""The handlers that generate or count: one for each dialect, count_tokens, embeddings.

Owns the order of checks before work: readiness, key, headers, body, model, fields, length. Called
through the routes of `app.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from gateway.answers import json_answer
from gateway.auth import authenticate, identity_of
from gateway.bodies import JsonBody
from gateway.call import call_of
from gateway.cursor import Cursor, read_cursor
from gateway.delivery import deliver
from gateway.deps import Deps
from gateway.errors import ModelUnknown, Overloaded
from gateway.idempotency import fingerprint_of, read_key, scope_of
from gateway.keyed import KeyedRequest
from schemas.dialects import anthropic, completions, openai, responses
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest, shown
from schemas.dialects.embeddings import parse as parse_embedding
from schemas.operations import KeyCreated
from schemas.requests import Dialect
from schemas.thinking_signature import verify_thinking

__all__ = [
    "admit",
    "chat_completions",
    "completed_text",
    "count_tokens",
    "embeddings",
    "messages",
    "require_model",
    "responded",
]

Parse = Callable[[object, str], CanonicalRequest]
"""Reads a decoded body of a version. Raises InvalidRequest."""

_RESUMABLE = "millstream-resumable"


async def messages(request: Request, deps: Deps) -> ASGIApp:
    """POST /v1/messages."""
    return await _answer(request, deps, partial(anthropic.parse, verify=_verifier(deps)))


async def chat_completions(request: Request, deps: Deps) -> ASGIApp:
    """POST /v1/chat/completions."""
    return await _answer(request, deps, openai.parse)


async def completed_text(request: Request, deps: Deps) -> ASGIApp:
    """POST /v1/completions."""
    return await _answer(request, deps, completions.parse)


async def responded(request: Request, deps: Deps) -> ASGIApp:
    """POST /v1/responses."""
    return await _answer(request, deps, responses.parse)


async def count_tokens(request: Request, deps: Deps) -> Response:
    """POST /v1/messages/count_tokens."""
    admit(request, deps)
    version = _version(request)
    body = await _body(request, deps)
    parse = partial(anthropic.parse_count, version=version, verify=_verifier(deps))
    canonical = await body.through(parse)
    tokens = await deps.prompts.tokens(canonical)
    return json_answer({"input_tokens": len(tokens)})


async def embeddings(request: Request, deps: Deps) -> Response:
    """POST /v1/embeddings: a clear refusal, as no model that is served makes any."""
    admit(request, deps)
    body = await _body(request, deps)
    await body.through(partial(parse_embedding, version=_version(request)))
    served = deps.model.alias
    raise InvalidRequest(
        "model", f"{served} generates text and makes no embeddings", code="model_not_supported"
    )


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


async def _answer(request: Request, deps: Deps, parse: Parse) -> ASGIApp:
    """Take a generating POST through its checks; return the response that delivers its reply."""
    key = admit(request, deps)
    version = _version(request)
    body = await _body(request, deps)
    wish = await _wish(request, body, version)
    canonical = await body.through(lambda value: parse(value, version))
    return await _generate(request, deps, key, canonical, wish)


def _verifier(deps: Deps) -> Callable[[str, str], bool]:
    """Return what tells whether a thinking block came from this platform."""
    return lambda thinking, signature: verify_thinking(thinking, signature, deps.locator_key)


def _version(request: Request) -> str:
    """Return the version of the dialect. Raises InvalidRequest."""
    if call_of(request.scope).dialect is Dialect.ANTHROPIC:
        return anthropic.check_version(request.headers.get("anthropic-version"))
    return "v1"


async def _body(request: Request, deps: Deps) -> JsonBody:
    body = await deps.bodies.read_json(request.headers, request.receive)
    model = body.value.get("model") if isinstance(body.value, dict) else None
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


async def _wish(request: Request, body: JsonBody, version: str) -> _Wish:
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
    fingerprint = await body.through(
        lambda value: fingerprint_of(call.method, path, version, value)
    )
    return _Wish(key=key, fingerprint=fingerprint, resumable=True, after=after)


async def _generate(
    request: Request, deps: Deps, key: KeyCreated, canonical: CanonicalRequest, wish: _Wish
) -> ASGIApp:
    call = call_of(request.scope)
    call.stream = canonical.stream
    identity = identity_of(key, canonical.user)
    tokens = await deps.prompts.tokens(canonical)
    form = await deps.grammars.form_of(canonical, tokens)
    if wish.key is None:
        reply = await deps.submission.submit(
            canonical, tokens, identity, call.request_id, resumable=wish.resumable, form=form
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
            form=form,
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
