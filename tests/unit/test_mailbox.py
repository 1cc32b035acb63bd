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


class Consumer:
    """A consumer that waits in a task and takes what it is offered, or leaves it."""

    def __init__(self, *, takes: bool) -> None:
        self.mailbox = Mailbox()
        self.takes = takes
        self.offered: list[list[Chunk | End]] = []
        self.woken = 0

    def offer(self) -> bool:
        """Take what waits."""
        if self.takes:
            self.offered.append(self.mailbox.take())
        return self.takes

    async def run(self) -> None:
        """Wait for ever."""
        self.mailbox.offer_to(self.offer)
        while True:
            await self.mailbox.wait(100)
            self.woken += 1


async def offered(consumer: Consumer, *mail: tuple[Chunk | End, ...]) -> None:
    """Let a consumer wait, put mail, and let it come through."""
    running = asyncio.create_task(consumer.run())
    await asyncio.sleep(0.1)
    for offset, entries in enumerate(mail):
        consumer.mailbox.put(entries, offset)
    await asyncio.sleep(0.1)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_chunks_of_one_poll_are_offered_once_and_wake_nobody() -> None:
    """A consumer that takes what it is offered goes on waiting."""

    async def scenario() -> None:
        consumer = Consumer(takes=True)
        await offered(consumer, (chunk(1),), (chunk(2),))
        assert consumer.offered == [[chunk(1), chunk(2)]] and consumer.woken == 0

    run_virtually(scenario())


def test_what_is_left_or_holds_an_end_is_the_waiters() -> None:
    """An offer that is not taken wakes the consumer; with an end there is none."""

    async def scenario() -> None:
        refusing, ended = Consumer(takes=False), Consumer(takes=True)
        await offered(refusing, (chunk(1),))
        assert refusing.woken == 1 and refusing.mailbox.take() == [chunk(1)]
        await offered(ended, (chunk(1),), (chunk(2), END))
        assert ended.woken == 1 and ended.mailbox.take() == [chunk(1), chunk(2), END]

    run_virtually(scenario())


def test_a_consumer_that_does_not_wait_is_offered_nothing() -> None:
    """What it is doing comes before what comes now."""

    async def scenario() -> None:
        consumer = Consumer(takes=True)
        consumer.mailbox.offer_to(consumer.offer)
        consumer.mailbox.put((chunk(1),), 0)
        await asyncio.sleep(0.1)
        assert consumer.offered == [] and consumer.mailbox.take() == [chunk(1)]

    run_virtually(scenario())
