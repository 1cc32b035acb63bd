"""The fold: who counts in a reply, judged by log order alone (design rule 6.1).

One pure function used by every reader: gateway, worker, audit, simulator. It owns acceptance and
the end of a reply; it does not own text, usage or what a worker does next.

Source: design section 6; the shape follows event-sourced aggregates (state, event -> state,
verdict).
"""

from msgspec import Struct, field

from schemas.replies import Closed, CloseReason, Delta, Start, Stop, Terminal, TokenLogprob
from schemas.requests import Identity, Placement, ReplyHeader


class Origin(Struct, frozen=True, kw_only=True):
    """What the first start carried (or the close, where there was none) and when it was
    appended."""

    header: ReplyHeader
    identity: Identity
    placement: Placement
    append_time_ms: int


class End(Struct, frozen=True, kw_only=True):
    """How the reply ended: by a counted terminal or by the first close, never both."""

    terminal: Terminal | None
    close_reason: CloseReason | None
    append_time_ms: int
    message: str | None = None
    cached_tokens: int | None = None
    """As in the fold, which a terminal does not repeat: what clients are told beside it."""


class BarrenStart(Struct, frozen=True):
    """A start after which no token was accepted yet: by which worker's incarnation, and how."""

    worker: str
    alone: bool


def ended_fold(terminal: Terminal, append_time_ms: int, cached_tokens: int | None) -> "ReplyFold":
    """Return what the fold of a finished reply shows to clients, from its counted terminal alone.

    Its origin, attempts and times of tokens stay unknown: usage is never made from it.
    """
    places = [((part.segment, part.choice), part) for part in terminal.tokens]
    accepted = {place: list(part.token_ids) for place, part in places}
    return ReplyFold(
        starts=1,
        accepted=accepted,
        logprobs={place: list(part.logprobs) for place, part in places if part.logprobs},
        stops=dict(enumerate(terminal.stops)),
        accepted_count=sum(map(len, accepted.values())),
        cached_tokens=cached_tokens,
        end=_counted(terminal, append_time_ms, cached_tokens),
    )


class ReplyFold(Struct, kw_only=True):
    """State of one reply after some prefix of its partition's log. Mutated by `apply` only."""

    attempt: str | None = None
    starts: int = 0
    barren: tuple[BarrenStart, ...] = ()
    """Starts since the newest accepted token, those of one worker in a row counted once."""
    origin: Origin | None = None
    accepted: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """Accepted token ids by (segment, choice)."""
    accepted_count: int = 0
    logprobs: dict[tuple[int, int], list[TokenLogprob]] = field(default_factory=dict)
    """By (segment, choice) and token, where the request asked for them."""
    stops: dict[int, Stop] = field(default_factory=dict)
    """By choice, why it ended. Those of all choices stand here only once the reply has ended."""
    cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache, as the first accepted token delta of any choice
    tells: what clients are shown and usage records. None before that delta."""
    first_token_at_ms: int | None = None
    end: End | None = None

    def apply(self, fact: Start | Delta | Closed, append_time_ms: int) -> bool:
        """Take the next fact of this reply in log order; return whether it counted.

        A start counts until the end and makes its attempt current. A delta counts if its attempt
        is current, its choice has not ended and its first index is the next one; the last open
        choice's end only as a terminal, and a terminal only as that end, with everybody's stops and
        with the accepted ids plus its own. The first close counts. After the end nothing does.
        """
        if self.end is not None:
            return False
        if isinstance(fact, Delta):
            return self._accept(fact, append_time_ms)
        if self.origin is None:
            self.origin = Origin(
                header=fact.header,
                identity=fact.identity,
                placement=fact.placement,
                append_time_ms=append_time_ms,
            )
        if isinstance(fact, Start):
            self.attempt = fact.attempt
            self.starts += 1
            barren = BarrenStart(fact.worker, fact.alone)
            if self.barren[-1:] != (barren,):
                self.barren = (*self.barren, barren)
        else:
            self.end = End(
                terminal=None,
                close_reason=fact.reason,
                append_time_ms=append_time_ms,
                message=fact.message,
            )
        return True

    def _accept(self, delta: Delta, append_time_ms: int) -> bool:
        if delta.attempt != self.attempt:
            return False
        place = (delta.segment, delta.choice)
        tokens = self.accepted.get(place)
        if delta.first_index != (len(tokens) if tokens else 0):
            return False
        if self.stops and delta.choice in self.stops:
            return False
        ends = delta.stop is not None or delta.terminal is not None
        if ends and not self._ends_rightly(delta):
            return False
        if tokens is None:
            tokens = self.accepted[place] = []
        if delta.token_ids:
            tokens.extend(delta.token_ids)
            self.accepted_count += len(delta.token_ids)
            self.barren = ()
            if self.first_token_at_ms is None:
                self.first_token_at_ms = append_time_ms
                self.cached_tokens = delta.cached_tokens
            if delta.logprobs is not None:
                self.logprobs.setdefault(place, []).extend(delta.logprobs)
        if delta.stop is not None:
            self.stops[delta.choice] = delta.stop
        if delta.terminal is not None:
            self.end = _counted(delta.terminal, append_time_ms, self.cached_tokens)
        return True

    def _ends_rightly(self, delta: Delta) -> bool:
        """Tell whether a choice's last delta is a terminal exactly where no other is open."""
        if delta.stop is None:
            return False
        assert self.origin is not None, "an attempt is current, so its start stood before"
        choices = self.origin.header.choices
        stops = {**self.stops, delta.choice: delta.stop}
        open_count = choices - len(stops)
        if delta.choice >= choices:
            return False
        if delta.terminal is None:
            return open_count > 0
        if open_count or delta.terminal.stops != tuple(stops[choice] for choice in sorted(stops)):
            return False
        return self._completes(delta, delta.terminal)

    def _completes(self, delta: Delta, terminal: Terminal) -> bool:
        """Tell whether the terminal's ids are the accepted ones plus the delta's own."""
        own = (delta.segment, delta.choice)
        claimed = {(part.segment, part.choice): part.token_ids for part in terminal.tokens}
        if set(claimed) != set(self.accepted) | {own}:
            return False
        for place, token_ids in claimed.items():
            held = self.accepted.get(place, ())
            mine = delta.token_ids if place == own else ()
            if len(token_ids) != len(held) + len(mine):
                return False
            if tuple(held) + mine != token_ids:
                return False
        return True


def _counted(terminal: Terminal, append_time_ms: int, cached_tokens: int | None) -> End:
    return End(
        terminal=terminal,
        close_reason=None,
        append_time_ms=append_time_ms,
        cached_tokens=cached_tokens,
    )
