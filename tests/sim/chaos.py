"""What strikes whole processes: crashes, pauses, rebalances, wrong clocks; drawn from the seed.

Owns when. Crashes come at drawn times, and within a few steps of the loop after a send or an
insert: between any two awaits of the code that has just done something it cannot take back.
"""

import random
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from infra.ports import TopicPartition
from schemas.codec import decode
from schemas.replies import ReplyRecord, fact_of
from schemas.topics import REPLIES, workers_group
from streams.metering.sink import GROUP
from tests.sim.platform import POOL

if TYPE_CHECKING:
    from tests.sim.world import World

STEPS_AFTER_MAX = 12
RESTARTS_S = (0.05, 0.3, 1.0, 3.0)
PAUSES_S = (0.3, 1.5, 3.5, 6.0)
DRAINS_S = (0.0, 0.3, 2.0)
HAUNTED = 2
CRASHES_AGAIN = 4
CRASH_AGAIN_CHANCE = 0.4
SKEWS_MS = (-1_500, -200, 200, 1_500)
STEPS_MS = (-4_000, -500, 500, 4_000)


class Chaos:
    """The strikes of one run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._random = random.Random(f"chaos/{world.options.seed}")
        self.active = True
        self._haunted: dict[str, int] = {}
        """Replies whose workers die again and again, and how many of them still shall."""

    def begin(self, from_s: float, to_s: float) -> float:
        """Plan the strikes at drawn times; return for how long after the load faults go on."""
        options, world = self._world.options, self._world
        world.faults.on_send = self.on_send
        span_s = to_s + 1.5
        plans: list[tuple[str, int, Callable[[], None]]] = [
            ("worker-crash", 2, lambda: self._crash(self._pick("worker"), "crash.worker")),
            ("gateway-crash", 1, lambda: self._crash(self._pick("gateway"), "crash.gateway")),
            ("sink-crash", 1, lambda: self._crash("metering-0", "crash.metering")),
            ("worker-pause", 2, lambda: self._pause(self._pick(""))),
            ("rebalance", 3, self._rebalance),
            ("rebalance-twice", 2, self._rebalance_twice),
            ("drain", 2, self._drain),
            ("clock-step", 2, self._step_clock),
        ]
        for kind, count_max, strike in plans:
            if options.has(kind):
                for _ in range(self._random.randint(1, count_max)):
                    at_s = self._random.uniform(from_s, span_s)
                    world.loop.call_later(at_s, self._if_active, strike)
        if options.has("clock-skew") and world.strikes.allows():
            for name in world.names():
                world.clock_of(name).skew_ms = self._random.choice(SKEWS_MS)
            world.events.fault(world.now_s(), "clock.skew")
        if options.has("crash-again"):
            chosen = set(self._random.sample(range(options.requests), HAUNTED))
            self._haunted = {
                client.request_id: CRASHES_AGAIN
                for client in world.crowd.clients
                if client.index in chosen
            }
        return 1.5

    def on_send(self, writer: str, place: TopicPartition, value: bytes) -> None:
        """Perhaps strike the sender of a record within the next steps."""
        if self._haunted and place.topic == REPLIES:
            self._haunt(writer, value)
        options, name = self._world.options, writer.partition(":")[0]
        chance = 0.01 * options.intensity
        if options.has("crash-after-send") and self._random.random() < chance:
            self._soon(lambda: self._crash(name, f"crash.{name.partition('-')[0]}"))
        pauses = options.has("worker-pause") and place.topic == REPLIES
        if pauses and self._random.random() < chance:
            self._soon(lambda: self._pause(name))

    def _haunt(self, writer: str, value: bytes) -> None:
        """Kill whoever works on a haunted reply, until it has seen enough of that."""
        told = {fact_of(entry).request_id for entry in decode(value, ReplyRecord).entries}
        for request_id, left in self._haunted.items():
            if left and request_id in told and self._random.random() < CRASH_AGAIN_CHANCE:
                self._haunted[request_id] = left - 1
                kind = "crash.again" if left < CRASHES_AGAIN else "crash.worker"
                self._soon(partial(self._crash, writer.partition(":")[0], kind))

    def on_insert(self) -> None:
        """Perhaps kill the sink between its insert and its commit."""
        options = self._world.options
        if options.has("sink-crash") and self._random.random() < 0.15 * options.intensity:
            self._soon(lambda: self._crash("metering-0", "crash.metering"))

    def _soon(self, strike: Callable[[], None]) -> None:
        steps = self._random.randrange(STEPS_AFTER_MAX)
        self._world.loop.after_steps(steps, lambda: self._if_active(strike))

    def _if_active(self, strike: Callable[[], None]) -> None:
        if self.active and self._world.strikes.allows():
            # What a strike starts belongs to nobody, whoever's send it was that called for it.
            Context().run(strike)

    def _pick(self, kind: str) -> str:
        return self._random.choice(self._world.names(kind))

    def _crash(self, name: str, kind: str) -> None:
        world = self._world
        if name not in world.processes:
            return
        world.events.fault(world.now_s(), kind, name)
        world.kill(name)
        world.loop.call_later(self._random.choice(RESTARTS_S), world.birth, name)

    def _pause(self, name: str) -> None:
        world = self._world
        if name not in world.processes:
            return
        seconds = self._random.choice(PAUSES_S)
        world.events.fault(world.now_s(), f"pause.{name.partition('-')[0]}", f"{name} {seconds} s")
        world.pause(name, seconds)

    def _rebalance(self) -> None:
        world = self._world
        group = self._random.choice((workers_group(POOL), workers_group(POOL), GROUP))
        scatter = self._random.random() < 0.5
        world.events.fault(world.now_s(), "rebalance", f"{group}{' scatter' if scatter else ''}")
        world.broker.rebalance(group, scatter=scatter)

    def _rebalance_twice(self) -> None:
        """Move lanes, and move them again before anybody has settled."""
        group = self._random.choice((workers_group(POOL), workers_group(POOL), GROUP))
        world, pause_s = self._world, self._random.choice((0.0, 0.002, 0.03))
        world.events.fault(world.now_s(), "rebalance.twice", f"{group} within {pause_s} s")
        world.broker.rebalance(group, scatter=True)
        world.loop.call_later(pause_s, partial(world.broker.rebalance, group, scatter=True))

    def _drain(self) -> None:
        """Let a worker leave in good order, as a rolling restart does, and come back."""
        world, name = self._world, self._pick("worker")
        back_in_s = self._random.choice(RESTARTS_S)
        if world.drain(name, self._random.choice(DRAINS_S), back_in_s):
            world.events.fault(world.now_s(), "drain.worker", name)

    def _step_clock(self) -> None:
        world, name = self._world, self._pick("")
        step_ms = self._random.choice(STEPS_MS)
        world.events.fault(world.now_s(), "clock.step", f"{name} {step_ms} ms")
        world.clock_of(name).skew_ms += step_ms
