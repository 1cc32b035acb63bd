"""The judge: what the log says, folded by rules of its own, apart from the product's.

Owns the truth that checkers compare everybody's views with. Written anew from design rule 6.1
rather than shared with `schemas.fold`, so that a bug in the product's fold shows as a difference.
"""

from bisect import bisect_left
from dataclasses import dataclass, field

from infra.ports import LogRecord
from schemas.replies import Closed, Delta, ReplyRecord, Start, Stop, Terminal, fact_of
from schemas.requests import RequestAccepted
from schemas.usage import UsageRecorded


@dataclass(frozen=True, slots=True)
class Moment:
    """A reply as it stood after all records below `next_offset`."""

    next_offset: int
    starts: int
    attempt: str | None
    accepted: int
    ended: bool


NOTHING = Moment(0, 0, None, 0, False)


@dataclass(slots=True)
class Judged:
    """One reply by the judge's own fold (one segment: all that exists here)."""

    request_id: str
    partition: int
    first_offset: int
    first: Start | Closed | None = None
    first_ms: int = 0
    attempt: str | None = None
    starts: int = 0
    tokens: list[int] = field(default_factory=list)
    """Of all choices, in log order."""
    choices: list[int] = field(default_factory=list)
    """By token, the choice that it belongs to."""
    makers: list[str] = field(default_factory=list)
    """By token, the attempt that made it."""
    stops: dict[int, Stop] = field(default_factory=dict)
    first_token_ms: int | None = None
    cached: int | None = None
    terminal: Delta | None = None
    close: Closed | None = None
    ended_ms: int = 0
    ended_s: float = 0.0
    end_offset: int | None = None
    history: list[Moment] = field(default_factory=list)
    _usage: UsageRecorded | None = None

    @property
    def ended(self) -> bool:
        """Tell whether the end has been appended."""
        return self.terminal is not None or self.close is not None

    def apply(self, fact: Start | Delta | Closed, at_ms: int) -> None:
        """Take the next fact in log order."""
        if self.ended:
            return
        if isinstance(fact, Delta):
            self._accept(fact, at_ms)
            return
        if self.first is None:
            self.first, self.first_ms = fact, at_ms
        if isinstance(fact, Start):
            self.attempt, self.starts = fact.attempt, self.starts + 1
        else:
            self.close, self.ended_ms = fact, at_ms

    @property
    def choice_count(self) -> int:
        """How many choices were asked for."""
        return 1 if self.first is None else self.first.header.choices

    def of_choice(self, choice: int, accepted: int | None = None) -> list[int]:
        """Return a choice's tokens among all of them, or among the first `accepted` ones."""
        if self.choice_count == 1:
            return self.tokens[:accepted] if choice == 0 else []
        pairs = zip(self.tokens[:accepted], self.choices, strict=False)
        return [token for token, owner in pairs if owner == choice]

    def _accept(self, delta: Delta, at_ms: int) -> None:
        choice, held = delta.choice, self.of_choice(delta.choice)
        if delta.attempt != self.attempt or delta.first_index != len(held):
            return
        if choice in self.stops or choice >= self.choice_count:
            return
        stops = self.stops if delta.stop is None else {**self.stops, choice: delta.stop}
        if (len(stops) == self.choice_count) != (delta.terminal is not None):
            return
        if delta.terminal is not None:
            if not self._completes(delta, delta.terminal, stops):
                return
            self.terminal, self.ended_ms = delta, at_ms
        if delta.token_ids and not self.tokens:
            self.first_token_ms, self.cached = at_ms, delta.cached_tokens
        self.stops = stops
        self.tokens = [*self.tokens, *delta.token_ids]
        self.choices.extend([choice] * len(delta.token_ids))
        self.makers.extend([delta.attempt] * len(delta.token_ids))

    def _completes(self, delta: Delta, terminal: Terminal, stops: dict[int, Stop]) -> bool:
        """Tell whether a terminal says of each choice what stands in the log and in its delta."""
        whole = {choice: tuple(self.of_choice(choice)) for choice in range(self.choice_count)}
        whole[delta.choice] += delta.token_ids
        claimed = {part.choice: part.token_ids for part in terminal.tokens}
        in_order = tuple(stops[choice] for choice in sorted(stops))
        return claimed == whole and terminal.stops == in_order

    def at(self, next_offset: int) -> Moment:
        """Return how this reply stood for a reader that is to read `next_offset` next."""
        index = bisect_left(self.history, next_offset + 1, key=lambda moment: moment.next_offset)
        return self.history[index - 1] if index else NOTHING

    def remember(self, next_offset: int) -> None:
        """Note how it stands after a record."""
        self.history.append(
            Moment(next_offset, self.starts, self.attempt, len(self.tokens), self.ended)
        )

    def usage(self) -> UsageRecorded:
        """Return what the usage of this ended reply must be, to the byte."""
        if self._usage is None or not self.ended:
            self._usage = self._make_usage()
        return self._usage

    def _make_usage(self) -> UsageRecorded:
        assert self.first is not None, "an ended reply began"
        identity, placement, header = self.first.identity, self.first.placement, self.first.header
        terminal = self.terminal.terminal if self.terminal is not None else None
        return UsageRecorded(
            request_id=self.request_id,
            org=identity.org,
            workspace=identity.workspace,
            key_id=identity.key_id,
            user=identity.user,
            alias=placement.alias,
            model=placement.model,
            model_version=placement.model_version,
            pool=placement.pool,
            region=placement.region,
            rollout_arm=placement.rollout_arm,
            price_book_version=placement.price_book_version,
            dialect=header.dialect.value,
            accepted_at_ms=self.first_ms,
            first_token_at_ms=self.first_token_ms,
            ended_at_ms=self.ended_ms,
            input_tokens=header.prompt_tokens if self.tokens else 0,
            cached_tokens=self.cached or 0,
            output_tokens=len(self.tokens),
            cost_nano=0,
            stop_reason=terminal.stops[0].reason.value if terminal is not None else None,
            close_reason=self.close.reason.value if self.close is not None else None,
            stages=terminal.stages if terminal is not None else None,
        )


@dataclass(slots=True)
class Landed:
    """The copies of one request on the log."""

    request: RequestAccepted
    first_append_ms: int
    places: list[tuple[int, int]] = field(default_factory=list)
    """Lane and offset of each copy."""


@dataclass(slots=True)
class Judge:
    """All replies, requests and usage events that ever landed."""

    replies: dict[str, Judged] = field(default_factory=dict)
    requests: dict[str, Landed] = field(default_factory=dict)
    usage: dict[str, list[LogRecord]] = field(default_factory=dict)
    starts: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By attempt: worker incarnation and request id of its one start."""

    def accepted(self, request_id: str) -> int:
        """Return how many tokens of a reply the log has accepted by now."""
        reply = self.replies.get(request_id)
        return 0 if reply is None else len(reply.tokens)

    def take_replies(self, record: LogRecord, facts: ReplyRecord, now_s: float) -> list[Judged]:
        """Fold one record of `replies.v1`; return the replies that it tells of."""
        touched: dict[str, Judged] = {}
        for entry in facts.entries:
            fact = fact_of(entry)
            reply = self.replies.get(fact.request_id)
            if reply is None:
                reply = Judged(fact.request_id, record.partition, record.offset)
                self.replies[fact.request_id] = reply
            was_ended = reply.ended
            reply.apply(fact, record.append_time_ms)
            if reply.ended and not was_ended:
                reply.ended_s, reply.end_offset = now_s, record.offset
            touched[fact.request_id] = reply
        for reply in touched.values():
            reply.remember(record.offset + 1)
        return list(touched.values())

    def take_request(self, record: LogRecord, request: RequestAccepted) -> Landed:
        """Note one copy of a request."""
        landed = self.requests.get(request.request_id)
        if landed is None:
            landed = Landed(request, record.append_time_ms)
            self.requests[request.request_id] = landed
        landed.places.append((record.partition, record.offset))
        return landed
