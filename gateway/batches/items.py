"""One item of a batch: from its line of the input to the result that a call of its own would get.

Owns what an item may not ask for, the key under which it runs (one generation and one bill,
whichever gateway runs it, however often), and when a failure is tried again. Knows no order of
items (`run.py`) and no HTTP.
"""

import asyncio
import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace
from structlog.typing import FilteringBoundLogger

from gateway.answers import error_value
from gateway.assembling import assembler_of
from gateway.bodies import JsonBody, decode_json
from gateway.drafting import require_model
from gateway.errors import (
    BodyTooLarge,
    CutByDrain,
    EventTooLarge,
    HandoverFailed,
    LogAway,
    Overloaded,
    Refused,
    ReplyBroken,
)
from gateway.grammars import Grammars
from gateway.idempotency import scope_of
from gateway.keyed import Keyed, KeyedRequest
from gateway.prompts import Prompts
from infra.errors import LogError
from infra.ports import Clock, Entropy
from schemas import limits
from schemas.batches import BatchCreated, ItemEnded, ItemOutcome
from schemas.dialects import anthropic, completions, openai, responses
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest, shown
from schemas.ids import RequestId
from schemas.replies import CloseReason
from schemas.requests import Dialect, Identity, RequestClass
from schemas.thinking_signature import verify_thinking

__all__ = ["Item", "Items", "item_of"]

_MESSAGES: Final = "/v1/messages"
_REFUSED = "is not allowed in a batch"


Parse = Callable[[object, str], CanonicalRequest]
"""Reads a decoded body of a version. Raises InvalidRequest."""


class Item(Struct, frozen=True, kw_only=True):
    """One item as its line tells."""

    index: int
    custom_id: str
    body: bytes | None
    """JSON; None where the line was too long to be read."""


class _AnthropicLine(Struct, frozen=True, kw_only=True):
    custom_id: str
    params: Raw


class _OpenAiLine(Struct, frozen=True, kw_only=True):
    custom_id: str
    body: Raw


class _Failed(Exception):
    """A reply that ended without its terminal."""

    def __init__(self, error: ReplyBroken, *, had_tokens: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.had_tokens = had_tokens


_ANTHROPIC_LINE: Final = msgspec.json.Decoder(_AnthropicLine)
_OPENAI_LINE: Final = msgspec.json.Decoder(_OpenAiLine)


def item_of(batch: BatchCreated, index: int, line: bytes | None) -> Item:
    """Return the item of a line that was checked when the batch was made."""
    if line is None:
        return Item(index=index, custom_id="", body=None)
    if batch.dialect is Dialect.ANTHROPIC:
        asked = _ANTHROPIC_LINE.decode(line)
        return Item(index=index, custom_id=asked.custom_id, body=bytes(asked.params))
    called = _OPENAI_LINE.decode(line)
    return Item(index=index, custom_id=called.custom_id, body=bytes(called.body))


class Items:
    """Answers items, any number at once."""

    def __init__(
        self,
        *,
        clock: Clock,
        entropy: Entropy,
        keyed: Keyed,
        prompts: Prompts,
        grammars: Grammars,
        locator_key: bytes,
        model: str,
        log: FilteringBoundLogger,
        require_month: Callable[[str], None],
    ) -> None:
        """Take the parts.

        Args: `model` is the id that requests name; `require_month` raises QuotaExhausted for an org
            that has no tokens left of this month.
        """
        self._clock = clock
        self._entropy = entropy
        self._keyed = keyed
        self._prompts = prompts
        self._grammars = grammars
        self._locator_key = locator_key
        self._model = model
        self._log = log
        self._require_month = require_month
        self._parsers: Mapping[str, Parse] = {
            _MESSAGES: partial(anthropic.parse, verify=self._verify),
            "/v1/chat/completions": openai.parse,
            "/v1/completions": completions.parse,
            "/v1/responses": responses.parse,
        }

    async def answer(
        self, batch: BatchCreated, item: Item, over: Callable[[], bool]
    ) -> ItemEnded | None:
        """Return an item's result; None where `over` says that no more tries are to be begun.

        What may pass (no room, no worker, a log that is away) is waited out; what an item asks for
        wrongly, or a reply that failed after its first token, is an error at once.
        """
        pause_ms, failures = limits.BATCH_RETRY_MS_MIN, 0
        request: KeyedRequest | None = None
        while not over():
            request_id = RequestId(self._entropy.uuid())  # an id that has ended is never used again
            try:
                request = request or await self._request(batch, item, request_id)
                return await self._run(batch, item, replace(request, request_id=request_id))
            except (Overloaded, LogAway, HandoverFailed, LogError):
                pass
            except CutByDrain:
                return None
            except _Failed as failed:
                failures += failed.error.reason is not CloseReason.LATE
                if failed.had_tokens or failures >= limits.BATCH_ITEM_FAILURES_MAX:
                    return _errored(batch, item, failed.error, request_id)
            except (InvalidRequest, Refused) as error:
                return _errored(batch, item, error, request_id)
            except Exception as error:  # one item's, and none of the batch's others
                self._log.error("item failed", batch_id=batch.batch_id, exc_info=error)
                return _errored(batch, item, error, request_id)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, limits.BATCH_RETRY_MS_MAX)
        return None

    async def _request(
        self, batch: BatchCreated, item: Item, request_id: RequestId
    ) -> KeyedRequest:
        """Return the item as a request with a key. Raises as a call of its own would."""
        if item.body is None:
            raise BodyTooLarge(f"a request is larger than {limits.BATCH_ITEM_BYTES_MAX} bytes")
        raw = JsonBody(value=item.body, size_bytes=len(item.body))
        body = JsonBody(value=await raw.through(decode_json), size_bytes=len(item.body))
        model = body.value.get("model") if isinstance(body.value, dict) else None
        if isinstance(model, str):
            require_model(shown(model), self._model)
        parse = self._parsers[batch.endpoint]
        _refuse_unbatched(batch, body.value)
        canonical = await body.through(lambda value: parse(value, batch.dialect_version))
        tokens = await self._prompts.tokens(canonical)
        form = await self._grammars.form_of(canonical, tokens)
        return KeyedRequest(
            # No key that a client can send holds a zero byte.
            scope=scope_of(
                batch.org, batch.workspace, f"\0batch/{batch.batch_id}/{item.custom_id}"
            ),
            fingerprint=hashlib.sha256(item.body).hexdigest(),
            canonical=canonical,
            prompt_token_ids=tokens,
            identity=Identity(
                org=batch.org,
                workspace=batch.workspace,
                key_id=batch.key_id,
                user=canonical.user,
            ),
            request_id=request_id,
            form=form,
            before_start=partial(self._may_start, batch.org),
            request_class=RequestClass.BATCH,
        )

    async def _run(self, batch: BatchCreated, item: Item, request: KeyedRequest) -> ItemEnded:
        """Return the result once the reply has ended. Raises as `Keyed.submit`; _Failed."""
        reply = (await self._keyed.submit(request)).reply
        try:
            await reply.take_end(lambda: None)
            end = reply.end
            assert end is not None, "nobody interrupts an item"
            if end.terminal is None:
                raise reply.broken()
            assembler = assembler_of(reply, self._prompts, self._locator_key)
            body = assembler.whole(end.terminal, end.cached_tokens)
        except (CutByDrain, HandoverFailed):
            raise
        except ReplyBroken as error:
            raise _Failed(error, had_tokens=reply.accepted_count > 0) from error
        finally:
            await reply.release()
        usage = body["usage"]
        if batch.dialect is Dialect.ANTHROPIC and isinstance(usage, dict):
            usage["service_tier"] = "batch"
        encoded = msgspec.json.encode(body)
        if len(encoded) > limits.EVENT_BYTES_MAX - limits.KIB:
            raise EventTooLarge(f"the reply takes {len(encoded)} bytes, too many for a result")
        return ItemEnded(
            index=item.index,
            custom_id=item.custom_id,
            outcome=ItemOutcome.SUCCEEDED,
            status=200,
            request_id=reply.request.request_id,
            body=encoded,
        )

    async def _may_start(self, org: str) -> None:
        self._require_month(org)  # an item that runs already, or has ended, goes on

    def _verify(self, thinking: str, signature: str) -> bool:
        return verify_thinking(thinking, signature, self._locator_key)


def _refuse_unbatched(batch: BatchCreated, body: object) -> None:
    """Refuse what only a call of its own may ask for. Raises InvalidRequest."""
    if not isinstance(body, dict):
        return
    if body.get("stream"):
        raise InvalidRequest("stream", _REFUSED)
    if batch.dialect is Dialect.ANTHROPIC:
        if body.get("speed") is not None:
            raise InvalidRequest("speed", _REFUSED)
        if type(body.get("max_tokens")) is int and body["max_tokens"] == 0:
            raise InvalidRequest("max_tokens", f"0 {_REFUSED}")


def _errored(batch: BatchCreated, item: Item, error: Exception, request_id: RequestId) -> ItemEnded:
    status, value = error_value(error, batch.dialect, request_id)
    return ItemEnded(
        index=item.index,
        custom_id=item.custom_id,
        outcome=ItemOutcome.ERRORED,
        status=status,
        request_id=request_id,
        body=msgspec.json.encode(value),
    )
