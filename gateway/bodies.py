"""Reading request bodies: bounded one by one and all together, then JSON.

Owns how many bytes of bodies are held at once. Knows no field of any dialect.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from starlette.datastructures import Headers
from starlette.types import Receive

from gateway.errors import BodyTooLarge, BodyTooSlow, ClientGone, Overloaded
from schemas import limits
from schemas.dialects.canonical import InvalidRequest

__all__ = ["BodyReader", "decode_json"]

_INLINE_BYTES_MAX = 256 * limits.KIB
"""Below this decoding takes under 2 ms; longer bodies are decoded in a thread."""


class BodyReader:
    """Reads bodies of all calls of one gateway within shared bounds."""

    def __init__(self, body_bytes_max: int = limits.HTTP_BODY_BYTES_MAX) -> None:
        self._body_bytes_max = body_bytes_max
        self._held_bytes = 0

    async def read_json(self, headers: Headers, receive: Receive) -> object:
        """Return the decoded body.

        Raises: BodyTooLarge, BodyTooSlow, Overloaded, ClientGone, InvalidRequest (no JSON).
        """
        if headers.get("content-encoding", "identity").lower() not in ("identity", ""):
            raise InvalidRequest("content-encoding", "compressed bodies are not supported")
        with self._hold() as body:
            await self._read(headers, receive, body)
            if len(body) <= _INLINE_BYTES_MAX:
                return decode_json(body)
            return await asyncio.to_thread(decode_json, body)

    async def _read(self, headers: Headers, receive: Receive, body: bytearray) -> None:
        announced = headers.get("content-length", "")
        if announced.isdigit() and int(announced) > self._body_bytes_max:
            await self._refuse(headers, receive, int(announced))
        try:
            async with asyncio.timeout(limits.HTTP_BODY_READ_MS / 1000):
                more = True
                while more:
                    chunk, more = await _next_chunk(receive)
                    self._held_bytes += len(chunk)
                    body += chunk
                    if len(body) > self._body_bytes_max:
                        await self._refuse(headers, receive, len(body) if more else 0)
                    if self._held_bytes > limits.HTTP_BODIES_BYTES_MAX:
                        raise Overloaded("Overloaded: too many large bodies at once")
        except TimeoutError as error:
            raise BodyTooSlow("the request body did not arrive in time") from error

    async def _refuse(self, headers: Headers, receive: Receive, announced: int) -> None:
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
        raise BodyTooLarge(f"request body is larger than {self._body_bytes_max} bytes")

    @contextmanager
    def _hold(self) -> Iterator[bytearray]:
        body = bytearray()
        try:
            yield body
        finally:
            self._held_bytes -= len(body)


def decode_json(body: bytes | bytearray) -> object:
    """Return the value of a JSON text. Raises InvalidRequest for anything else."""
    try:
        value: object = msgspec.json.decode(body)
    except RecursionError as error:
        raise _too_deep() from error
    except msgspec.MsgspecError as error:
        raise InvalidRequest("", f"the request body is not valid JSON: {error}") from error
    level: list[object] = [value]
    for _ in range(limits.HTTP_JSON_DEPTH_MAX):
        level = [child for node in level for child in _children(node)]
        if not level:
            return value
    raise _too_deep()


def _children(node: object) -> list[object]:
    if isinstance(node, dict):
        return [child for child in node.values() if isinstance(child, (dict, list))]
    if isinstance(node, list):
        return [child for child in node if isinstance(child, (dict, list))]
    return []


def _too_deep() -> InvalidRequest:
    depth = limits.HTTP_JSON_DEPTH_MAX
    return InvalidRequest("", f"the request body is JSON nested deeper than {depth} levels")


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone("the client left while sending")
    return message.get("body", b""), message.get("more_body", False)
