"""Three embedded brokers: the death of one costs a pause, of two a clear 503, and no record."""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiokafka
import httpx
import pytest
from aiokafka.errors import NotCoordinatorForGroupError

import infra.kafka
from infra.supervisor.state import read_state
from schemas.topics import USAGE
from tests.integration.load import Load, sdks
from tests.integration.platform import MODEL, SOAK, Platform, eventually

BROKERS = ("kafka-0", "kafka-1", "kafka-2")
CLIENTS = 16 if SOAK else 8
PAUSE_MAX_S = 3.0
"""The longest that any client may hear nothing, whichever broker dies."""
BACK_WITHIN_S = 60.0
BEFORE_S, AFTER_S = 1.5, 4.0
AWAY_S = 15.0 if SOAK else 6.0
"""How long two brokers stay away."""
SILENT_S = 4.5
"""After this long new requests are refused."""
PATHS = ("/v1/messages", "/v1/chat/completions")


@dataclass(slots=True)
class Listener:
    """Streams one reply after the other and notes when it heard anything."""

    url: str
    key: str
    heard_s: list[float] = field(default_factory=list)
    ended: int = 0
    failures: list[str] = field(default_factory=list)
    stopping: bool = False

    tokens: int = 150

    async def run(self) -> None:
        """Listen until told to stop."""
        self.heard_s.append(time.monotonic())
        while not self.stopping:
            await self.listen_once()

    async def listen_once(self) -> None:
        """Stream one reply to its end."""
        headers = {"x-api-key": self.key, "anthropic-version": "2023-06-01"}
        async with httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=60, trust_env=False
        ) as client:
            await self._stream(client)

    async def _stream(self, client: httpx.AsyncClient) -> None:
        body = _body(self.tokens, prompt=f"Go on, {self.ended}.")
        last = b""
        try:
            async with client.stream("POST", "/v1/messages", json=body) as answer:
                if answer.status_code != 200:
                    self.failures.append(f"{answer.status_code} {(await answer.aread())!r}")
                    return
                async for chunk in answer.aiter_raw():
                    self.heard_s.append(time.monotonic())
                    last = (last + chunk)[-64:]
        except httpx.HTTPError as error:
            self.failures.append(f"{error!r} after {last!r}")
            return
        if b"message_stop" in last:
            self.ended += 1
        else:
            self.failures.append(f"ended with {last!r}")

    @property
    def pause_s(self) -> float:
        """The longest time between two things heard."""
        return max(after - before for before, after in itertools.pairwise(self.heard_s))


@pytest.mark.parametrize("name", BROKERS if SOAK else BROKERS[:1])
def test_the_death_of_any_broker_is_a_pause(trio: Platform, name: str) -> None:
    """kill -9 of a broker under load: no request fails, nobody waits longer than the bound, every
    reply is metered once, and the audit agrees."""
    outcome = asyncio.run(_kill_under_load(trio, name))
    pauses_s = sorted(listener.pause_s for listener in outcome.listeners)
    print(f"{name}: back after {outcome.back_after_s:.1f} s; pauses {pauses_s}")
    assert [failure for one in outcome.listeners for failure in one.failures] == []
    assert outcome.load.failed == []
    assert sum(one.ended for one in outcome.listeners) > CLIENTS
    assert pauses_s[-1] <= PAUSE_MAX_S
    _check_metered(trio, outcome.load)
    trio.check_audit()


def test_without_two_of_three_brokers_clients_get_503_and_nothing_is_lost(trio: Platform) -> None:
    """While two brokers are away new requests get a 503 at once, in each dialect's form; open
    streams pause and are complete once they are back."""
    silent, listeners = asyncio.run(_two_away(trio))
    print(f"{len(silent)} refused; pauses {sorted(one.pause_s for one in listeners)}")
    for path, answer in silent:
        assert answer.status_code == 503, (path, answer.status_code, answer.text)
        assert int(answer.headers["retry-after"]) > 0
        error = answer.json()["error"]
        assert "log does not answer" in error["message"]
        assert error["type"] == ("overloaded_error" if path == PATHS[0] else "server_error")
    assert {path for path, _ in silent} == set(PATHS)
    assert [failure for one in listeners for failure in one.failures] == []
    assert [one.ended for one in listeners] == [1] * len(listeners)
    trio.check_audit()


def test_a_broker_that_is_not_a_groups_coordinator_is_not_believed(trio: Platform) -> None:
    """Asked what a group has committed, as happens while coordinators move, it has no answer; a
    member that took that for "nothing" would work off a lane from its oldest record again."""
    assert asyncio.run(_ask_all_brokers(trio)) == {"offset 7": 1, "not the coordinator": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What clients saw over one kill."""

    listeners: list[Listener]
    load: Load
    back_after_s: float


async def _kill_under_load(platform: Platform, name: str) -> Outcome:
    listeners = [Listener(url=platform.url, key=platform.key) for _ in range(CLIENTS)]
    async with sdks(platform.url, platform.key) as clients:
        load = Load(clients)
        running = [
            *(asyncio.create_task(listener.run()) for listener in listeners),
            *(asyncio.create_task(load.send_for_ever()) for _ in range(4)),
        ]
        await asyncio.sleep(BEFORE_S)
        killed = await asyncio.to_thread(platform.kill, name)
        back_after_s = await asyncio.to_thread(platform.wait_back, name, killed, BACK_WITHIN_S)
        await asyncio.sleep(AFTER_S)
        load.stop()
        for listener in listeners:
            listener.stopping = True
        await asyncio.gather(*running)
    return Outcome(listeners=listeners, load=load, back_after_s=back_after_s)


async def _two_away(
    platform: Platform,
) -> tuple[list[tuple[str, httpx.Response]], list[Listener]]:
    """Open streams, keep two brokers away, ask meanwhile; return the answers and the streams."""
    listeners = [
        Listener(url=platform.url, key=platform.key, tokens=1_500, stopping=True)
        for _ in range(CLIENTS)
    ]
    answers: list[tuple[str, httpx.Response]] = []
    headers = {"authorization": f"Bearer {platform.key}", "anthropic-version": "2023-06-01"}
    async with httpx.AsyncClient(
        base_url=platform.url, headers=headers, timeout=60, trust_env=False
    ) as client:
        streams = [asyncio.create_task(listener.listen_once()) for listener in listeners]
        await asyncio.sleep(BEFORE_S)
        away_until_s = time.monotonic() + AWAY_S
        keeping_away = asyncio.create_task(_keep_away(platform, BROKERS[1:], away_until_s))
        await asyncio.sleep(SILENT_S)
        while time.monotonic() < away_until_s:
            path = PATHS[len(answers) % len(PATHS)]
            answers.append((path, await client.post(path, json=_body(1, stream=False))))
            await asyncio.sleep(0.25)
        await keeping_away
        await asyncio.gather(*streams)
        await asyncio.to_thread(
            eventually, lambda: platform.status()["ready"], BACK_WITHIN_S, "all brokers are back"
        )
        for path in PATHS:
            answer = await client.post(path, json=_body(1, stream=False))
            assert answer.status_code == 200, answer.text
    return answers, listeners


async def _ask_all_brokers(platform: Platform) -> Counter[str]:
    """Commit something and ask each broker for it; count the answers."""
    assert infra.kafka  # it corrects what a consumer asks
    place = aiokafka.TopicPartition(USAGE, 0)
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=platform.shown["endpoints"]["kafka"],
        group_id="asks-everyone",
        enable_auto_commit=False,
    )
    await consumer.start()
    try:
        consumer.assign([place])
        await consumer.commit({place: 7})
        answers: Counter[str] = Counter()
        coordinator = consumer._coordinator
        for broker in consumer._client.cluster.brokers():
            coordinator.coordinator_id = broker.nodeId
            coordinator._coordinator_dead_fut = asyncio.get_running_loop().create_future()
            try:
                found = await coordinator._do_fetch_commit_offsets([place])
            except NotCoordinatorForGroupError:
                answers["not the coordinator"] += 1
            else:
                answers[f"offset {found[place].offset}"] += 1
        return answers
    finally:
        await consumer.stop()


async def _keep_away(platform: Platform, names: Sequence[str], until_s: float) -> None:
    """Kill these processes, and again whenever they were started again."""
    killed: set[int] = set()
    while time.monotonic() < until_s:
        state = read_state(platform.data / "state.json")
        for process in state.processes if state else ():
            if process.name in names and process.pid is not None and process.pid not in killed:
                killed.add(process.pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
        await asyncio.sleep(0.02)


def _body(tokens: int, *, stream: bool = True, prompt: str = "Go on.") -> dict[str, object]:
    return {
        "model": MODEL,
        "max_tokens": tokens,
        "stream": stream,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": prompt}],
    }


def _check_metered(platform: Platform, load: Load) -> None:
    """Check that every finished reply has its one row with the tokens that the client was told."""
    told = {
        reply.request_id: (reply.input_tokens, reply.output_tokens, None) for reply in load.finished
    }
    eventually(lambda: platform.usage_of(list(told)) == told, 20.0, "every finished reply's row")
