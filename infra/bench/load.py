"""The load client: `python -m infra.bench.load`, one plan a line in, one result a line out.

Owns pacing (closed, open, held streams) and its own lag. Latencies count from when a request was
due, so that a slow server cannot hide behind a client that waits for it. Started by `children.py`.
"""

import asyncio
import contextlib
import gc
import itertools
import resource
import sys
from collections import Counter
from collections.abc import Sequence
from time import perf_counter

import msgspec
import uvloop

from infra.bench.exchange import Connection, Exchange
from infra.bench.plan import Latencies, LoadPlan, LoadResult
from infra.bench.statistics import percentile

_PROBE_S = 0.005
_GAPS_KEPT = 200_000
_ANSWER_WITHIN_S = 120.0
_HELD_WITHIN_S = 60.0


class _Load:
    """One plan being carried out."""

    def __init__(self, plan: LoadPlan, lines: asyncio.StreamReader) -> None:
        self._plan = plan
        self._lines = lines
        self._loop = asyncio.get_running_loop()
        keys = plan.keys or (None,) * len(plan.bodies)
        self._requests = itertools.cycle(
            [_request(plan, body, key) for body, key in zip(plan.bodies, keys, strict=True)]
        )
        self._idle: list[Connection] = []
        self._exchanges: list[Exchange] = []
        self._open = 0
        self._drained = asyncio.Event()

    async def run(self) -> LoadResult:
        """Carry the plan out and sum it up."""
        lags: list[float] = []
        probe = asyncio.create_task(self._probe(lags))
        cpu_s, began_s = _cpu_s(), perf_counter()
        match self._plan.mode:
            case "closed":
                await self._closed()
            case "open":
                await self._paced()
            case "hold":
                await self._hold()
        wall_s, cpu_s = perf_counter() - began_s, _cpu_s() - cpu_s
        probe.cancel()
        for connection in self._idle:
            connection.close()
        return _result(
            self._exchanges, tokens=self._plan.tokens, wall_s=wall_s, cpu_s=cpu_s, lags=lags
        )

    async def _closed(self) -> None:
        plan = self._plan
        until_s = perf_counter() + plan.duration_s
        left = itertools.repeat(None, plan.requests) if plan.requests else itertools.repeat(None)

        async def client() -> None:
            connection = await self._connect()
            for _ in left:
                if not plan.requests and perf_counter() >= until_s:
                    break
                if not connection.is_open:
                    connection = await self._connect()
                ended = asyncio.Event()
                exchange = self._exchange(perf_counter())
                connection.ask(next(self._requests), exchange, lambda _, e=ended: e.set())  # type: ignore[misc]
                try:
                    async with asyncio.timeout(_ANSWER_WITHIN_S):
                        await ended.wait()
                except TimeoutError:
                    connection.close()  # counts as a request without an end
            self._idle.append(connection)

        await asyncio.gather(*(client() for _ in range(plan.concurrency)))

    async def _paced(self) -> None:
        plan = self._plan
        self._idle = [await self._connect() for _ in range(plan.concurrency)]
        began_s = perf_counter()
        tasks: set[asyncio.Task[None]] = set()
        for number in range(int(plan.rate * plan.duration_s)):
            due_s = began_s + number / plan.rate
            pause_s = due_s - perf_counter()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            exchange = self._exchange(due_s)
            while self._idle and not self._idle[-1].is_open:
                self._idle.pop()
            if self._idle:
                self._ask(self._idle.pop(), exchange)
            else:
                task = asyncio.create_task(self._ask_on_new(exchange))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                while self._open:
                    self._drained.clear()
                    await self._drained.wait()

    async def _hold(self) -> None:
        plan = self._plan
        connections = []
        began_s = perf_counter()
        for number in range(plan.concurrency):
            pause_s = began_s + number / plan.connects_per_s - perf_counter()
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            connection = await self._connect()
            self._ask(connection, self._exchange(perf_counter()))
            connections.append(connection)
        answered_by_s = perf_counter() + _HELD_WITHIN_S
        # One look at all of them now and then is cheaper than an event for each.
        while perf_counter() < answered_by_s and any(  # noqa: ASYNC110  # one look, no events
            not exchange.status and not exchange.failure for exchange in self._exchanges
        ):
            await asyncio.sleep(0.1)
        held = sum(1 for item in self._exchanges if item.status == 200 and not item.failure)
        for item in self._exchanges:
            item.arrivals.clear()  # what came while streams were still being opened
        _say({"held": held})
        await self._lines.readline()
        for connection in connections:
            connection.close()
        _say({"left": len(connections)})
        while self._open:
            self._drained.clear()
            await self._drained.wait()

    def _exchange(self, due_s: float) -> Exchange:
        exchange = Exchange(due_s)
        self._exchanges.append(exchange)
        return exchange

    def _ask(self, connection: Connection, exchange: Exchange) -> None:
        self._open += 1

        def ended(_: Exchange) -> None:
            self._open -= 1
            if connection.is_open:
                self._idle.append(connection)
            if not self._open:
                self._drained.set()

        connection.ask(next(self._requests), exchange, ended)

    async def _ask_on_new(self, exchange: Exchange) -> None:
        try:
            self._ask(await self._connect(), exchange)
        except OSError as error:
            exchange.failure, exchange.ended_s = f"connect: {error}", perf_counter()

    async def _connect(self) -> Connection:
        _, connection = await self._loop.create_connection(
            Connection, self._plan.host, self._plan.port
        )
        return connection

    async def _probe(self, lags: list[float]) -> None:
        while True:
            due_s = perf_counter() + _PROBE_S
            await asyncio.sleep(_PROBE_S)
            lags.append(perf_counter() - due_s)


def _request(plan: LoadPlan, body: str, key: str | None) -> bytes:
    raw, keyed = body.encode(), {} if key is None else {"idempotency-key": key}
    head = [
        f"POST {plan.path} HTTP/1.1",
        f"host: {plan.host}:{plan.port}",
        "content-type: application/json",
        f"content-length: {len(raw)}",
        *(f"{name}: {value}" for name, value in (plan.headers | keyed).items()),
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + raw


def _result(
    exchanges: Sequence[Exchange],
    *,
    tokens: int,
    wall_s: float,
    cpu_s: float,
    lags: Sequence[float],
) -> LoadResult:
    good = [item for item in exchanges if item.failure is None and item.ended_s is not None]
    gaps: list[float] = []
    pace: list[float] = []
    for item in exchanges:
        gaps.extend(later[0] - earlier[0] for earlier, later in itertools.pairwise(item.arrivals))
        if item.failure is None and item.first_s is not None and tokens > 1 and item.arrivals:
            pace.append((item.arrivals[-1][0] - item.first_s) / (tokens - 1))
    stride = max(1, len(gaps) // _GAPS_KEPT)
    failures = Counter(
        item.failure or "no end" for item in exchanges if item.failure or item.ended_s is None
    )
    return LoadResult(
        wall_s=wall_s,
        completed=len(good),
        failures=dict(failures),
        events=sum(count for item in exchanges for _, count in item.arrivals),
        reads=sum(len(item.arrivals) for item in exchanges),
        body_bytes=sum(item.size for item in exchanges),
        first=_latencies([item.first_s - item.due_s for item in good if item.first_s is not None]),
        whole=_latencies([item.ended_s - item.due_s for item in good if item.ended_s is not None]),
        gaps=_latencies(gaps[::stride]),
        pace=_latencies(pace),
        own_cpu_s=cpu_s,
        own_lag=_latencies(lags),
    )


def _latencies(values: Sequence[float]) -> Latencies:
    if not values:
        return Latencies()
    return Latencies(
        count=len(values),
        p50=percentile(values, 0.5),
        p99=percentile(values, 0.99),
        p999=percentile(values, 0.999),
        highest=max(values),
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _say(answer: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


async def _main() -> None:
    gc.freeze()
    lines = asyncio.StreamReader(limit=1 << 26)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        if line.strip():
            _say(await _Load(msgspec.json.decode(line, type=LoadPlan), lines).run())


if __name__ == "__main__":
    uvloop.run(_main())
