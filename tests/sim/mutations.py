"""Planted bugs: each a small switchable mutation that a checker must find within its time.

Owns their list and the schedules that they are looked for under. The numbers in the comments are
those of the protocol's list of bugs that were confirmed on a model. Number 22, a dropped copy that
finishes at once, is not among them: all copies of an id lie in one lane, above the one that is
worked on, so the lowest unfinished offset holds every commit back until the end all the same. The
mutations of folds, workers and keys stand in modules of their own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine_workers import jobs as jobs_module
from engine_workers import tail as tail_module
from engine_workers.engine import scripted_engine
from engine_workers.inflight import LaneProgress
from engine_workers.job import Attempt
from engine_workers.jobs import Jobs
from engine_workers.outbox import Outbox
from engine_workers.tail import ReplyTail
from gateway import assembling as assembling_module
from gateway import claims as claims_module
from gateway import delivery as delivery_module
from gateway import keyed as keyed_module
from gateway.claim_tail import ClaimTail
from gateway.claims import Claims
from gateway.idempotency import ClaimBook
from gateway.keyed import Keyed
from gateway.mailbox import Mailbox
from gateway.orphans import Orphans
from gateway.reader import ReplyReader
from gateway.reply_tails import ReplyTails
from infra.ports import TopicPartition
from schemas.assembler import Assembler
from schemas.assembler.sse import SseEvent, sse_event
from schemas.fold import ReplyFold
from streams.metering.intake import Intake
from tests.sim import fold_mutations
from tests.sim import key_mutations as keys
from tests.sim import worker_mutations as bugs
from tests.sim.options import KINDS, Bias
from tests.sim.swaps import swapped

if TYPE_CHECKING:
    from tests.sim.world import World

ZOMBIES = Bias(
    faults=frozenset({"worker-pause", "rebalance", "poll-rebalance", "poll-stall", "tail-stall"}),
    intensity=2.0,
)
"""Workers that act on lanes they have lost, and tails that lag behind."""
DUELS = Bias(
    faults=frozenset({"rebalance-twice", "poll-stall"}),
    without=frozenset(KINDS) - {"rebalance-twice", "poll-stall", "rebalance"},
    intensity=1.0,
)
"""Two workers at one lane for a while, and few faults that could excuse many starts."""
LATE_RECORDS = Bias(
    faults=frozenset({"send-late", "send-delay", "gateway-crash", "crash-after-send"}),
    intensity=2.0,
)
FORGETFUL = Bias(faults=frozenset({"tight-limits", "send-duplicate", "rebalance"}), intensity=2.0)
CROWDED = Bias(faults=frozenset({"tight-limits", "slow-client"}), intensity=2.0)
CUT_OFF = Bias(faults=frozenset({"disconnect", "send-delay"}), intensity=2.0)
CRASHES = Bias(faults=frozenset({"worker-crash", "crash-after-send"}), intensity=2.0)
SLOW_SINK = Bias(faults=frozenset({"store-slow", "store-unknown", "send-duplicate"}), intensity=2.0)
SHAKY = Bias(faults=frozenset({"send-delay", "send-late", "send-ack_lost", "send-duplicate"}))
KEYS = Bias(faults=frozenset({"send-delay", "disconnect", "send-lose"}), keyed=0.8)
LOST_EVENTS = Bias(
    faults=frozenset({"send-lose", "send-late", "disconnect", "gateway-crash", "crash-after-send"}),
    intensity=2.0,
    keyed=0.8,
)
REPRICED = Bias(
    faults=frozenset({"price-change", "send-late", "send-duplicate", "send-ack_lost"}),
    intensity=2.0,
    keyed=0.8,
)
CANCELLED = Bias(faults=frozenset({"cancel", "disconnect", "send-delay"}), keyed=0.6)
RESUMED = Bias(faults=frozenset({"disconnect", "gateway-crash"}), keyed=0.4, resumable=1.0)

Planting = Callable[["World"], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """One planted bug."""

    planted: Planting
    bias: Bias | None = None


def _swap(owner: object, **attributes: Any) -> Planting:
    return lambda world: swapped(owner, **attributes)


def _both(first: Planting, second: Planting) -> Planting:
    @contextmanager
    def planted(world: "World") -> Iterator[None]:
        with first(world), second(world):
            yield

    return planted


@contextmanager
def _keep_every_copy(world: "World") -> Iterator[None]:
    """The store keeps every copy of a row."""
    with swapped(world.platform.store, _collapse=False):
        yield


def _commit_what_was_read(self: Intake) -> Mapping[TopicPartition, int]:
    """What was read may be committed before it is stored."""
    return {
        place: offset
        for place, offset in self.expected.items()
        if self.committed.get(place) != offset
    }


def _skip(self: Mailbox) -> None:
    """A mailbox that overflows goes on with what comes next."""
    self._entries.clear()
    self.wake()


def _take_all(self: Mailbox, mail: Any, offset: int) -> None:
    """A mailbox has no bound."""
    if not self._closed:
        self._entries.extend(mail)
        self.wake()


def _count_events(self: Assembler, frames: Any) -> tuple[SseEvent, ...]:
    """A cursor counts events where it should count tokens."""
    self._events += len(frames)
    self._tokens += max(0, len(frames) - 1)
    return tuple(sse_event(frame, self._tokens, index + 1) for index, frame in enumerate(frames))


def _floor_after_the_send(self: ReplyReader) -> int:
    """The floor is what the tail reaches only after the send."""
    assert self._next_offset is not None, "the reader has not started"
    return self._next_offset + 1


_next_to_read = property(lambda self: self.next_offset)

MUTATIONS: dict[str, Mutation] = {
    # The six that continuous integration must find.
    "commit-too-early": Mutation(planted=_swap(LaneProgress, commit_offset=_next_to_read)),  # 21
    "sink-without-dedup": Mutation(planted=_keep_every_copy, bias=SLOW_SINK),
    "usage-at-the-acknowledgement": Mutation(  # 15
        planted=_swap(Outbox, _acknowledged=bugs.usage_at_the_acknowledgement), bias=ZOMBIES
    ),
    "superseded-attempt-counts": Mutation(  # 1
        planted=_swap(ReplyFold, _accept=fold_mutations.superseded_attempt_counts), bias=ZOMBIES
    ),
    "published-before-the-own-start": Mutation(  # 8
        planted=_swap(Jobs, _start=bugs.start_publishing_at_once), bias=ZOMBIES
    ),
    "late-record-run": Mutation(
        planted=_swap(jobs_module, decide=bugs.run_late), bias=LATE_RECORDS
    ),
    # The rest of the list, as far as its features exist.
    "no-index-check": Mutation(  # 2
        planted=_both(
            _swap(ReplyFold, _accept=fold_mutations.no_index_check),
            _swap(Outbox, _send=bugs.send_tokens_twice),
        ),
        bias=SHAKY,
    ),
    **{  # 3, 4, 5, 6, 9, 16, 33
        name: Mutation(planted=_swap(ReplyFold, apply=mutant), bias=ZOMBIES)
        for name, mutant in fold_mutations.APPLY_MUTATIONS.items()
    },
    "terminal-with-a-choice-short": Mutation(
        planted=_both(
            _swap(Attempt, ended=property(lambda self: any(run.ended for run in self.runs))),
            _swap(ReplyFold, _ends_rightly=fold_mutations.any_end_is_right),
        ),
        bias=Bias(choices=1.0),
    ),
    "attempts-counted-anew": Mutation(  # 7
        planted=_swap(Jobs, __init__=bugs.count_attempts), bias=CRASHES
    ),
    "no-scan-below-the-tail": Mutation(  # 10
        planted=_swap(ReplyTail, look_up=bugs.look_up_without_a_scan), bias=CRASHES
    ),
    "tail-starts-late": Mutation(  # 11
        planted=_swap(ReplyTail, start=bugs.start_tailing_late),
        bias=Bias(faults=CRASHES.faults, intensity=2.0, late_start=True),
    ),
    "tail-forgets-silently": Mutation(  # 12
        planted=_swap(ReplyTail, _forget=bugs.forget_silently), bias=FORGETFUL
    ),
    "saved-fold-lacks-the-attempt": Mutation(  # 13
        planted=_swap(ReplyTail, _adopt=bugs.adopt_without_attempts), bias=CRASHES
    ),
    "usage-from-memory": Mutation(  # 14
        planted=_swap(Jobs, _meter=bugs.meter_from_memory), bias=CUT_OFF
    ),
    "closed-replies-cost-nothing": Mutation(  # 18
        planted=_swap(tail_module, usage_of=bugs.bill_closed_nothing), bias=CUT_OFF
    ),
    "nothing-is-not-metered": Mutation(  # 19
        planted=_swap(Jobs, _meter=bugs.meter_nothing_for_nothing), bias=CUT_OFF
    ),
    "finished-before-the-usage": Mutation(  # 20
        planted=_swap(Jobs, _meter=bugs.finish_before_the_usage), bias=SHAKY
    ),
    "floor-after-the-send": Mutation(  # 27
        planted=_swap(ReplyReader, next_offset=property(_floor_after_the_send))
    ),
    "same-attempt-sent-again": Mutation(  # 28
        planted=_swap(Jobs, on_send_failed=bugs.send_the_same_again), bias=SHAKY
    ),
    "close-ignored-while-running": Mutation(  # 30
        planted=_swap(Jobs, on_fact=bugs.ignore_closes), bias=CUT_OFF
    ),
    "close-ignored-at-takeover": Mutation(  # 30
        planted=_swap(jobs_module, decide=bugs.run_closed), bias=CRASHES
    ),
    "doubt-ignored": Mutation(planted=_swap(Jobs, _doubt=bugs.never_doubt), bias=SHAKY),  # 28
    "started-again-without-proof": Mutation(  # 29
        planted=_swap(Jobs, _doubt=bugs.doubt_without_proof), bias=DUELS
    ),
    "emitted-not-handed-over": Mutation(  # 31
        planted=_swap(Jobs, _run=bugs.run_from_the_beginning), bias=CRASHES
    ),
    "no-second-run-of-a-start": Mutation(  # 31
        planted=_swap(Jobs, _opened=bugs.go_on_without_a_new_run), bias=ZOMBIES
    ),
    "emitted-not-counted": Mutation(planted=_swap(Jobs, _run=bugs.run_for_longer), bias=CRASHES),
    "stop-string-lost-at-a-seam": Mutation(
        planted=_swap(scripted_engine, stop_of_emitted=bugs.forget_text_before_the_seam),
        bias=CRASHES,
    ),
    "cut-off-reply-given-up": Mutation(
        planted=_swap(jobs_module, decide=bugs.give_up_what_has_tokens), bias=CRASHES
    ),
    "taken-twice": Mutation(planted=_swap(Jobs, take=bugs.take_twice), bias=ZOMBIES),  # 34
    "sink-commits-first": Mutation(
        planted=_swap(Intake, committable=_commit_what_was_read), bias=SLOW_SINK
    ),
    "overflow-skips": Mutation(planted=_swap(Mailbox, lapse=_skip), bias=CROWDED),
    "price-of-the-event-copy": Mutation(  # 17
        planted=_swap(Jobs, _meter=bugs.price_of_the_copy), bias=REPRICED
    ),
    "last-claim-wins": Mutation(  # 23
        planted=_swap(ClaimBook, _claim=keys.last_claim_wins), bias=KEYS
    ),
    "losing-claim-runs": Mutation(planted=_swap(ClaimTail, _take=keys.loser_runs), bias=KEYS),  # 23
    "sent-before-the-read-back": Mutation(  # 24
        planted=_swap(Claims, claim=keys.believe_what_was_sent), bias=KEYS
    ),
    "sent-beside-the-claim": Mutation(  # 24
        planted=_swap(Claims, claim=keys.wait_for_nothing), bias=KEYS
    ),
    "new-id-on-a-re-send": Mutation(  # 25
        planted=_swap(keyed_module, _ticket=keys.with_a_new_id), bias=LOST_EVENTS
    ),
    "released-after-tokens": Mutation(  # 26
        planted=_both(
            _swap(keyed_module, is_void=keys.void_after_tokens),
            _swap(claims_module, is_void=keys.void_after_tokens),
        ),
        bias=CANCELLED,
    ),
    "released-before-the-close-lands": Mutation(  # 26
        planted=_swap(Keyed, _end_if_late=keys.release_unread), bias=LOST_EVENTS
    ),
    "new-floor-on-a-re-send": Mutation(  # 27
        planted=_swap(keyed_module, _ticket=keys.with_a_new_floor), bias=LOST_EVENTS
    ),
    "sent-again-to-another-lane": Mutation(  # 32
        planted=_swap(keyed_module, _ticket=keys.to_another_lane), bias=LOST_EVENTS
    ),
    "claim-judged-at-each-landing": Mutation(
        planted=_swap(ClaimBook, _claim=keys.judged_at_each_landing),
        bias=Bias(
            faults=LOST_EVENTS.faults | {"send-duplicate", "send-ack_lost"},
            intensity=2.0,
            keyed=0.8,
        ),
    ),
    "released-key-stays": Mutation(
        planted=_swap(ClaimBook, _release=keys.held_for_ever), bias=LOST_EVENTS
    ),
    "disconnect-ends-a-keyed-reply": Mutation(
        planted=_swap(Orphans, left=keys.close_keyed_ones), bias=KEYS
    ),
    "disconnect-ends-a-resumable-reply": Mutation(
        planted=_swap(Orphans, left=keys.close_at_once), bias=RESUMED
    ),
    "resumed-reply-read-from-the-tail": Mutation(
        planted=_swap(ReplyTails, _read=keys.read_from_the_tail), bias=RESUMED
    ),
    "resumed-with-an-event-twice": Mutation(
        planted=_swap(delivery_module, rest_of=keys.rest_with_the_cursors_own), bias=RESUMED
    ),
    "resumed-less-a-tokens-events": Mutation(
        planted=_swap(delivery_module, rest_of=keys.rest_by_tokens), bias=RESUMED
    ),
    "character-lost-between-records": Mutation(
        planted=_swap(assembling_module, Assembler=keys.RecordAtATime)
    ),
    "stop-string-shown-between-records": Mutation(
        planted=_swap(assembling_module, Assembler=keys.StopsWithinARecord)
    ),
    "mailbox-without-bound": Mutation(planted=_swap(Mailbox, put=_take_all), bias=CROWDED),
    "cursor-counts-events": Mutation(planted=_swap(Assembler, _numbered=_count_events)),
}
"""Every planted bug by name."""

FIRST_SIX = tuple(MUTATIONS)[:6]
"""Those that must be found in every run of the tests."""
