"""The handlers that generate or count: one for each dialect, count_tokens, embeddings.

Owns the order of checks before work: readiness, key, limits, headers, body, model, fields, length.
Called through the routes of `app.py`.
"""

from collections.abc import Callable
from functools import partial

from msgspec import Struct
from starlette.responses import Response
from starlette.types import ASGIApp, Receive

from gateway.answers import json_answer
from gateway.auth import authenticate, identity_of
from gateway.bodies import JsonBody
from gateway.call import Call
from gateway.cursor import Cursor, read_cursor
from gateway.delivery import deliver
from gateway.deps import Deps
from gateway.drafting import require_model
from gateway.errors import Overloaded
from gateway.idempotency import fingerprint_of, read_key, scope_of
from gateway.keyed import KeyedRequest
from gateway.limiting import Admission
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
    "responded",
    "version_of",
]

Parse = Callable[[object, str], CanonicalRequest]
"""Reads a decoded body of a version. Raises InvalidRequest."""

_RESUMABLE = "millstream-resumable"


async def messages(call: Call, receive: Receive, deps: Deps) -> ASGIApp:
    """POST /v1/messages."""
    return await _answer(call, receive, deps, partial(anthropic.parse, verify=_verifier(deps)))


async def chat_completions(call: Call, receive: Receive, deps: Deps) -> ASGIApp:
    """POST /v1/chat/completions."""
    return await _answer(call, receive, deps, openai.parse)


async def completed_text(call: Call, receive: Receive, deps: Deps) -> ASGIApp:
    """POST /v1/completions."""
    return await _answer(call, receive, deps, completions.parse)


async def responded(call: Call, receive: Receive, deps: Deps) -> ASGIApp:
    """POST /v1/responses."""
    return await _answer(call, receive, deps, responses.parse)


async def count_tokens(call: Call, receive: Receive, deps: Deps) -> Response:
    """POST /v1/messages/count_tokens."""
    key = admit(call, deps)
    admission = Admission.of(call, deps, key.org, counts=True)
    if admission is not None:
        admission.precheck(counts=True)
    version = version_of(call)
    body = await _body(call, receive, deps)
    parse = partial(anthropic.parse_count, version=version, verify=_verifier(deps))
    canonical = await body.through(parse)
    if admission is not None:
        await admission.enter(counts=True)
    tokens = await deps.prompts.tokens(canonical)
    return json_answer({"input_tokens": len(tokens)})


async def embeddings(call: Call, receive: Receive, deps: Deps) -> Response:
    """POST /v1/embeddings: a clear refusal, as no model that is served makes any."""
    admit(call, deps)
    body = await _body(call, receive, deps)
    await body.through(partial(parse_embedding, version=version_of(call)))
    served = deps.model.alias
    raise InvalidRequest(
        "model", f"{served} generates text and makes no embeddings", code="model_not_supported"
    )


def admit(call: Call, deps: Deps) -> KeyCreated:
    """Return the key of a call. Raises Overloaded while starting, NotAuthenticated."""
    unready = deps.unready()
    if unready is not None:
        raise Overloaded(f"Overloaded: {unready}")
    key = authenticate(call.headers, deps.control.keys)
    call.identity = identity_of(key, None)
    return key


async def _answer(call: Call, receive: Receive, deps: Deps, parse: Parse) -> ASGIApp:
    """Take a generating POST through its checks; return the response that delivers its reply."""
    key = admit(call, deps)
    admission = Admission.of(call, deps, key.org)
    if admission is not None and "idempotency-key" not in call.headers:
        admission.precheck()
    version = version_of(call)
    body = await _body(call, receive, deps)
    wish = await _wish(call, body, version)
    canonical = await body.through(lambda value: parse(value, version))
    if admission is None:
        return await _generate(call, deps, key, canonical, wish)
    try:
        return await _generate(call, deps, key, canonical, wish, admission)
    finally:
        admission.release()  # of what no reply was started for


def _verifier(deps: Deps) -> Callable[[str, str], bool]:
    """Return what tells whether a thinking block came from this platform."""
    return lambda thinking, signature: verify_thinking(thinking, signature, deps.locator_key)


def version_of(call: Call) -> str:
    """Return the version of the dialect. Raises InvalidRequest."""
    if call.dialect is Dialect.ANTHROPIC:
        return anthropic.check_version(call.headers.get("anthropic-version"))
    return "v1"


async def _body(call: Call, receive: Receive, deps: Deps) -> JsonBody:
    arrived = call.connection is not None and call.connection.has_body
    body = await deps.bodies.read_json(call.headers, receive, arrived=arrived)
    model = body.value.get("model") if isinstance(body.value, dict) else None
    if isinstance(model, str):
        call.model = shown(model)
        require_model(model, deps.model.alias)
    return body


class _Wish(Struct, frozen=True, kw_only=True):
    """What the headers ask for beyond the body."""

    key: str | None
    fingerprint: str
    """Empty without a key."""
    resumable: bool
    after: Cursor | None


async def _wish(call: Call, body: JsonBody, version: str) -> _Wish:
    """Read the headers of idempotency and resumption. Raises InvalidRequest."""
    headers = call.headers
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
    call: Call,
    deps: Deps,
    key: KeyCreated,
    canonical: CanonicalRequest,
    wish: _Wish,
    admission: Admission | None = None,
) -> ASGIApp:
    scope = "" if wish.key is None else scope_of(key.org, key.workspace, wish.key)
    if admission is not None and not (scope and deps.keyed.holds(scope)):
        await admission.enter()
    call.stream = canonical.stream
    call.keep_headers("origin", "accept-encoding")
    identity = identity_of(key, canonical.user)
    tokens = await deps.prompts.tokens(canonical)
    form = await deps.grammars.form_of(canonical, tokens)
    if wish.key is None:
        if admission is not None:
            await admission.begin(len(tokens))
        reply = await deps.submission.submit(
            canonical, tokens, identity, call.request_id, resumable=wish.resumable, form=form
        )
        if admission is not None:
            admission.follow(reply.followed)
        call.prompt_tokens = len(tokens)
        return deliver(call, deps, reply, stream=canonical.stream)
    keyed = await deps.keyed.submit(
        KeyedRequest(
            scope=scope,
            fingerprint=wish.fingerprint,
            canonical=canonical,
            prompt_token_ids=tokens,
            identity=identity,
            request_id=call.request_id,
            form=form,
            before_start=None if admission is None else partial(admission.begin, len(tokens)),
            only_resume=wish.after is not None,
        )
    )
    if admission is not None and not keyed.replayed:
        admission.follow(keyed.reply.followed)
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
