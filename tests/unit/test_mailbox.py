"""Mailboxes: who wakes whom, what a reader of the end alone is spared, and when alarms ring."""

import asyncio

from gateway.mailbox import Chunk, Mailbox
from schemas.fold import End
from tests.contract.virtual_time import run_virtually

END = End(terminal=None, close_reason=None, append_time_ms=1)


def chunk(token_id: int) -> Chunk:
    """Return a chunk of one token."""
    return Chunk(choice=0, token_ids=(token_id,), cached_tokens=None, stop=None)


def test_puts_before_a_wait_are_one_wake_up() -> None:
    """A consumer that comes late does not wait, and then waits for what comes next."""

    async def scenario() -> None:
        mailbox, began_s = Mailbox(), asyncio.get_running_loop().time()
        mailbox.put((chunk(1),), 0)
        mailbox.put((chunk(2),), 1)
        await mailbox.wait(5)
        assert mailbox.take() == [chunk(1), chunk(2)]
        await mailbox.wait(5)
        assert asyncio.get_running_loop().time() - began_s == 5

    run_virtually(scenario())


def test_an_early_alarm_lets_a_wait_return_early_never_late() -> None:
    """One alarm serves many waits: it is moved forward at once, and back when it has rung."""

    async def scenario() -> None:
        mailbox, loop = Mailbox(), asyncio.get_running_loop()
        loop.call_later(1, mailbox.wake)
        await mailbox.wait(10)
        assert loop.time() == 1
        await mailbox.wait(2)
        assert loop.time() == 3
        loop.call_later(1, mailbox.wake)
        await mailbox.wait(5)
        await mailbox.wait(100)
        assert loop.time() == 8
        await mailbox.wait(100)
        assert loop.time() == 108

    run_virtually(scenario())


def test_a_reader_of_the_end_alone_is_woken_once() -> None:
    """Tokens neither wait nor wake nor overflow; the first of them is told of."""

    async def scenario() -> None:
        mailbox, told = Mailbox(entries_max=2), list[str]()
        mailbox.keep_only_end(lambda: told.append("first"))
        for offset in range(5):
            mailbox.put((chunk(offset),), offset)
        assert told == ["first"] and not mailbox.lapsed and mailbox.take() == []
        await mailbox.wait(3)
        assert asyncio.get_running_loop().time() == 3
        mailbox.put((chunk(5), END), 5)
        await mailbox.wait(3)
        assert mailbox.take() == [END] and asyncio.get_running_loop().time() == 3

    run_virtually(scenario())


def test_an_end_that_came_before_is_kept() -> None:
    """Who asks for the end alone after it came gets it; tokens before it are told of."""
    mailbox, told = Mailbox(), list[str]()
    mailbox.put((chunk(1), END), 0)
    mailbox.keep_only_end(lambda: told.append("first"))
    assert mailbox.take() == [END] and told == ["first"]


def test_a_closed_mailbox_rings_no_more() -> None:
    """What was set for a consumer that has gone is cancelled."""

    async def scenario() -> None:
        mailbox = Mailbox()
        waiting = asyncio.create_task(mailbox.wait(10))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        mailbox.close()
        mailbox.put((chunk(1),), 0)
        assert mailbox.take() == []

    run_virtually(scenario())
