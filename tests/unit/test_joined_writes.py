"""Writes of one turn of the event loop reach the connection as one."""

import asyncio
from collections.abc import Callable

from gateway.joined_writes import JoinedWrites

KIB = 1_024


class Wire(asyncio.Transport):
    """A connection that notes what reaches it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 7)})
        self.met: list[str] = []
        self.closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Note a system call, by its size where it is large."""
        self.met.append(bytes(data).decode() if len(data) < KIB else f"{len(data)} bytes")

    def close(self) -> None:
        """Note it."""
        self.met.append("closed")
        self.closing = True

    def abort(self) -> None:
        """Note it."""
        self.met.append("aborted")
        self.closing = True

    def is_closing(self) -> bool:
        """Tell whether it is closed."""
        return self.closing


def met(*turns: Callable[[JoinedWrites], None]) -> list[str]:
    """Return what the wire meets of what some turns of the loop do."""

    async def run() -> list[str]:
        wire = Wire()
        joined = JoinedWrites(wire, asyncio.get_running_loop())
        assert joined.get_extra_info("peername") == ("127.0.0.1", 7)
        for turn in turns:
            turn(joined)
            wire.met.append("|")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return wire.met

    return asyncio.run(run())


def head_and_body(joined: JoinedWrites) -> None:
    """Write as a server does."""
    joined.write(b"head ")
    joined.write(b"body")


def test_what_one_turn_writes_is_one_system_call() -> None:
    """A head and its body leave together, once their turn has ended; later ones by themselves."""
    assert met(head_and_body, head_and_body) == ["|", "head body", "|", "head body"]


def test_large_writes_do_not_wait() -> None:
    """Above 64 KiB the transport has to say whether its client keeps up."""

    def much(joined: JoinedWrites) -> None:
        joined.write(b"x" * 40 * KIB)
        joined.write(b"x" * 40 * KIB)
        joined.write(b"end")

    assert met(much) == [f"{80 * KIB} bytes", "|", "end"]


def test_closing_writes_what_waits_and_aborting_drops_it() -> None:
    """A farewell arrives; a client that is cut gets nothing more."""

    def close(joined: JoinedWrites) -> None:
        head_and_body(joined)
        joined.close()

    def abort(joined: JoinedWrites) -> None:
        head_and_body(joined)
        joined.abort()

    assert met(close) == ["head body", "closed", "|"]
    assert met(abort) == ["aborted", "|"]


def test_what_comes_alone_need_not_wait_and_keeps_its_place() -> None:
    """An event leaves at once where nothing waits, else behind what does."""

    def event(joined: JoinedWrites) -> None:
        joined.write_now(b"event ")

    def head_and_event(joined: JoinedWrites) -> None:
        joined.write(b"head ")
        joined.write_now(b"event")

    def late(joined: JoinedWrites) -> None:
        joined.close()
        joined.write_now(b"late")

    assert met(event, head_and_event) == ["event ", "|", "|", "head event"]
    assert met(late) == ["closed", "|"]
