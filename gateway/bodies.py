"""Reading request bodies: bounded one by one and all together, inflated, then JSON.

Owns how many bytes of bodies are held at once, and what is too large to be worked on between two
turns of the event loop. Knows no field of any dialect.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Struct
from starlette.types import Receive

from gateway.errors import BodyTooLarge, BodyTooSlow, ClientGone, Overloaded
from gateway.inflation import inflate, is_compressed
from schemas import limits
from schemas.dialects.canonical import InvalidRequest

__all__ = ["BodyReader", "JsonBody", "decode_json"]

Outcome = TypeVar("Outcome")

_INLINE_BYTES_MAX = 32 * limits.KIB
"""Longer bodies are worked on in threads: one of this size takes 3 ms at worst, made of the
smallest messages there are."""


class JsonBody(Struct, frozen=True, kw_only=True):
    """A decoded body."""

    value: object
    size_bytes: int
    """Of its JSON, inflated."""

    async def through(self, work: Callable[[object], Outcome]) -> Outcome:
        """Return what a function makes of the value: at once, or in a thread where it is large."""
        if self.size_bytes <= _INLINE_BYTES_MAX:
            return work(self.value)
        return await asyncio.to_thread(work, self.value)


class BodyReader:
    """Reads bodies of all calls of one gateway within shared bounds."""

    def __init__(self, body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._held_bytes = 0

    async def read_json(
        self, headers: Mapping[str, str], receive: Receive, *, arrived: bool = False
    ) -> JsonBody:
        """Return the decoded body, which lies in memory already where it has `arrived`.

        Raises: BodyTooLarge (inflated, too), BodyTooSlow, Overloaded, ClientGone, InvalidRequest
            (no JSON, or compressed in a way that is not known).
        """
        compressed = is_compressed(headers)
        body, most = bytearray(), self._body_bytes_max
        try:
            await self._refuse_if_announced(headers, receive, most)
            if arrived:
                await self._read_within_bounds(headers, receive, body, most)
            else:
                await self._read_in_time(headers, receive, body, most, limits.HTTP_BODY_READ_MS)
            if compressed:
                await self._inflate(body, most)
            raw = JsonBody(value=body, size_bytes=len(body))
            return JsonBody(value=await raw.through(decode_json), size_bytes=len(body))
        finally:
            self.release(body)

    async def read_bytes(
        self, headers: Mapping[str, str], receive: Receive, *, bytes_max: int, within_ms: int
    ) -> bytearray:
        """Return a body as it is, inflated; whoever takes it lets go of it by `release`.

        Raises: as `read_json`, but for what is no JSON.
        """
        compressed = is_compressed(headers)
        body = bytearray()
        try:
            await self._refuse_if_announced(headers, receive, bytes_max)
            await self._read_in_time(headers, receive, body, bytes_max, within_ms)
            if compressed:
                await self._inflate(body, bytes_max)
        except BaseException:
            self.release(body)
            raise
        return body

    def release(self, body: bytearray) -> None:
        """Count a body no longer among those that are held."""
        self._held_bytes -= len(body)

    async def _inflate(self, body: bytearray, bytes_max: int) -> None:
        """Put a compressed body's content in its place."""
        content = await asyncio.to_thread(inflate, bytes(body), bytes_max)
        self._held_bytes += len(content) - len(body)
        body[:] = content
        self._require_room()

    async def _refuse_if_announced(
        self, headers: Mapping[str, str], receive: Receive, bytes_max: int
    ) -> None:
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > bytes_max:
            await self._refuse(headers, receive, int(announced), bytes_max)

    async def _read_in_time(
        self,
        headers: Mapping[str, str],
        receive: Receive,
        body: bytearray,
        bytes_max: int,
        within_ms: int,
    ) -> None:
        try:
            async with asyncio.timeout(within_ms / 1000):
                await self._read_within_bounds(headers, receive, body, bytes_max)
        except TimeoutError as error:
            raise BodyTooSlow("the request body did not arrive in time") from error

    async def _read_within_bounds(
        self, headers: Mapping[str, str], receive: Receive, body: bytearray, bytes_max: int
    ) -> None:
        more = True
        while more:
            chunk, more = await _next_chunk(receive)
            self._held_bytes += len(chunk)
            body += chunk
            if len(body) > bytes_max:
                await self._refuse(headers, receive, len(body) if more else 0, bytes_max)
            self._require_room()

    def _require_room(self) -> None:
        if self._held_bytes > limits.HTTP_BODIES_BYTES_MAX:
            raise Overloaded("Overloaded: too many large bodies at once")

    async def _refuse(
        self, headers: Mapping[str, str], receive: Receive, announced: int, bytes_max: int
    ) -> None:
        """Drain what is left, within bounds, so that the answer is not lost to a reset."""
        waits = "expect" in headers  # for our 100: then nothing was sent and nothing is to drain
        if 0 < announced <= limits.HTTP_DRAIN_BYTES_MAX and not waits:
            try:
                async with asyncio.timeout(limits.HTTP_BODY_READ_MS / 1000):
                    drained, more = 0, True
                    while more and drained <= limits.HTTP_DRAIN_BYTES_MAX:
                        chunk, more = await _next_chunk(receive)
                        drained += len(chunk)
            except TimeoutError:
                pass  # it gets its answer anyway; the connection is closed after it
        raise BodyTooLarge(f"request body is larger than {bytes_max} bytes")


def decode_json(body: object) -> object:
    """Return the value of a JSON text in bytes. Raises InvalidRequest for anything else."""
    assert isinstance(body, bytes | bytearray)
    try:
        value: object = msgspec.json.decode(body)
    except RecursionError as error:
        raise _too_deep() from error
    except msgspec.MsgspecError as error:
        raise InvalidRequest("", f"the request body is not valid JSON: {error}") from error
    if body.count(b"{") + body.count(b"[") > limits.HTTP_JSON_DEPTH_MAX:  # else it cannot be
        _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    """Go down level by level. Raises InvalidRequest where there are too many."""
    level: list[object] = [value]
    for _ in range(limits.HTTP_JSON_DEPTH_MAX):
        below: list[object] = []
        for node in level:
            if type(node) is dict:
                below += node.values()
            elif type(node) is list:
                below += node
        if not below:
            return
        level = below
    if any(isinstance(node, dict | list) for node in level):
        raise _too_deep()


def _too_deep() -> InvalidRequest:
    depth = limits.HTTP_JSON_DEPTH_MAX
    return InvalidRequest("", f"the request body is JSON nested deeper than {depth} levels")


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone("the client left while sending")
    return message.get("body", b""), message.get("more_body", False)
