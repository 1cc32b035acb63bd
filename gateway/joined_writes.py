"""A connection's writes, joined: what one turn of the event loop writes leaves in one system call.

The head of an answer and its body, or the events of several tokens, would be a packet and a call of
the kernel each. Owns what waits for the turn's end. Put around each connection by `server.py`.
"""

import asyncio
from collections.abc import Iterable

from schemas import limits

__all__ = ["JoinedWrites"]

_HELD_BYTES_MAX = 64 * limits.KIB
"""Above it the transport takes all at once, and tells whether the client keeps up."""


class JoinedWrites(asyncio.Transport):
    """A transport over another one. Nothing is held beyond the present turn of the loop."""

    __slots__ = ("_held", "_held_bytes", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._held_bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Write with all else that this turn writes; immutable data is not copied."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(bytes(data))
        self._held_bytes += len(data)
        if self._held_bytes > _HELD_BYTES_MAX:
            self._flush()

    def write_now(self, data: bytes) -> None:
        """Write at once what comes alone, such as a stream's events; in order, as ever."""
        if self._held:
            self.write(data)
        elif not self._transport.is_closing():
            self._transport.write(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write several pieces."""
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        """Close after everything written."""
        self._flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once; what waits is dropped."""
        self._held.clear()
        self._transport.abort()

    def is_closing(self) -> bool:
        """Tell whether it is closed or about to be."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: object = None) -> object:
        """Return what the connection knows."""
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        """Read no more for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        self._transport.resume_reading()

    def _flush(self) -> None:
        if not self._held:
            return
        held, self._held, self._held_bytes = self._held, [], 0
        if not self._transport.is_closing():
            self._transport.write(held[0] if len(held) == 1 else b"".join(held))
