"""All clients of a run: who connects when, who comes back, what is their last word.

Owns the decisions of clients about their next visit. The visits themselves are `sessions.py`.
"""

import asyncio
from contextvars import Context
from functools import partial
from typing import TYPE_CHECKING

from schemas.ids import RequestId
from tests.sim.clients import Client, Manner, Visit, draw_clients
from tests.sim.gateways import SimGateway
from tests.sim.loop import Violation
from tests.sim.sessions import Session, ask_to_cancel

if TYPE_CHECKING:
    from tests.sim.world import World

VISITS_MAX = 10
ERRORS_MAX = 2
BUSY_PAUSE_S = 0.5
CANCELS_MAX = 6
CANCEL_PAUSE_S = 0.2
OVERLOADED = 529
REUSED = 422


class Crowd:
    """The clients of one run."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self.clients = draw_clients(world.options)

    def begin(self, from_s: float) -> None:
        """Let them come, each at its time."""
        for client in self.clients:
            self._later(from_s + client.at_s, self._connect, client, _first(client))
            if client.cancels_after_s is not None:
                at_s = from_s + client.at_s + client.cancels_after_s
                self._later(at_s, self._cancel, client, CANCELS_MAX)

    def count_manners(self) -> None:
        """Count what clients did among the faults."""
        fired = self._world.events.fired
        for client in self.clients:
            for visit in client.visits:
                fired["client.gone"] += visit.answer == "gone"
                fired["client.slow"] += bool(client.pause_s and visit.body)
                fired["client.back"] += visit.after is not None
                fired["client.again"] += visit.again
                fired["key.replayed"] += visit.replayed
                fired["key.reused"] += visit.status == REUSED
                fired["mailbox.overflow"] += 0 if visit.reply is None else visit.reply.overflows

    def _later(self, at_s: float, call: object, *rest: object) -> None:
        # What a client does belongs to no process, whoever's end it was that called for it.
        self._world.loop.call_at(at_s, call, *rest, context=Context())  # type: ignore[arg-type]

    def _connect(self, client: Client, visit: Visit) -> None:
        world = self._world
        visit.began_s = world.now_s()
        client.visits.append(visit)
        gateway = world.processes.get(visit.gateway)
        if not isinstance(gateway, SimGateway):
            visit.answer = "refused"  # nobody listens there
            visit.status = OVERLOADED
            self._visited(client, visit, None)
            return
        session = Session(client, visit, gateway, world.checks)
        task = world.loop.spawn(gateway.life.process, session.run())
        task.add_done_callback(partial(self._visited, client, visit), context=Context())

    def _visited(self, client: Client, visit: Visit, task: "asyncio.Task[None] | None") -> None:
        world = self._world
        if task is not None:
            self._fail_with(client, task)
        visit.ended_s = visit.ended_s or world.now_s()
        if visit.answer is None:
            visit.answer = "reset"
        world.events.note(
            world.now_s(),
            f"client {client.index} {client.manner} {visit.request_id} at {visit.gateway}: "
            f"{visit.answer} {visit.status}",
        )
        wait_s = next_wait_s(client)
        if wait_s is None:
            client.answer = client.told()[-1].answer
        else:
            self._later(world.now_s() + wait_s, self._connect, client, next_visit(client))

    def _fail_with(self, client: Client, task: "asyncio.Task[None]") -> None:
        """A handler may end by its client's or its process's end, and by no error of its own."""
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, Violation):
            error = Violation(f"client {client.index}'s handler failed: {error!r}")
        if error is not None:
            self._world.loop.violate(error)

    def _cancel(self, client: Client, tries: int) -> None:
        if client.answer is not None or not tries:
            return
        world, name = self._world, f"gateway-{(client.gateway + tries) % client.gateways}"
        gateway, request = world.processes.get(name), _request_of(client)
        if isinstance(gateway, SimGateway) and client.reply_id is not None and request is not None:
            world.checks.cancels_asked.add(request)
            world.events.note(world.now_s(), f"client {client.index} cancels {request}")
            asked = ask_to_cancel(client, gateway, world.checks, request)
            task = world.loop.spawn(gateway.life.process, asked)
            task.add_done_callback(partial(self._fail_with, client), context=Context())
            tries = min(tries, 2)  # once more, where it was lost with its gateway
        self._later(world.now_s() + CANCEL_PAUSE_S, self._cancel, client, tries - 1)


def next_wait_s(client: Client) -> float | None:
    """Return how long a client waits before its next visit, None where it had its last word."""
    last = client.visits[-1]
    if last.again or len(client.visits) >= VISITS_MAX:
        return None
    if last.answer == "complete":
        can = client.reply_id is not None or client.manner is Manner.KEYED
        return client.away_s if client.asks_again and can else None
    keyed = client.manner is Manner.KEYED
    by_id = client.manner is Manner.RESUMABLE and client.reply_id is not None and client.stream
    if not keyed and not by_id:
        return None
    if last.answer == "refused":
        return BUSY_PAUSE_S if last.status == OVERLOADED else None
    if last.answer == "error":
        errors = sum(visit.answer == "error" for visit in client.visits)
        return client.away_s if keyed and errors < ERRORS_MAX else None
    return client.away_s


def next_visit(client: Client) -> Visit:
    """Return a client's next visit, at the next gateway."""
    number, again = len(client.visits), client.visits[-1].answer == "complete"
    by_id = None if client.manner is Manner.KEYED else client.reply_id
    return Visit(
        gateway=f"gateway-{(client.gateway + number) % client.gateways}",
        request_id=RequestId(f"{client.request_id[:8]}-{number:04x}{client.request_id[13:]}"),
        by_id=by_id,
        after=None if again or not client.stream else client.last_event_id(),
        again=again,
    )


def _first(client: Client) -> Visit:
    return Visit(gateway=f"gateway-{client.gateway}", request_id=client.request_id)


def _request_of(client: Client) -> str | None:
    for visit in reversed(client.visits):
        if visit.request is not None and visit.body:
            return visit.request.request_id
    return None
