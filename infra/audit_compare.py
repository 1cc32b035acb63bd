"""What the audit concludes: replies, usage topic and ClickHouse compared to the token (design rule
6.4). Pure.

Owns the comparison, its report and how the report reads. Knows nothing of topics and offsets but
the place of a usage event. Called by `infra/audit.py`.

What is legal: an exact copy of a row (counted as collapsed), a usage event more than once with
equal bytes, a reply that has not ended, a row whose usage event retention removed.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from msgspec import structs

from infra.ports import UsageRow
from schemas.usage import UsageRecorded

_SHOWN_MAX = 50
Place = tuple[int, int]
"""Partition and offset of a usage event on `usage.v1`."""


class Kind(StrEnum):
    """What is wrong with a request."""

    NOT_METERED = "not metered"
    """It ended and its record landed, but `usage.v1` holds no event of it."""
    WRONGLY_METERED = "wrongly metered"
    """Its usage event differs from what its reply says."""
    UNEQUAL_EVENTS = "unequal usage events"
    METERED_WITHOUT_REQUEST = "metered without a request"
    MISSING_ROW = "missing row"
    DIFFERENT_ROW = "different row"
    SEVERAL_ROWS = "several rows"
    UNEQUAL_COPIES = "unequal copies of a row"
    UNKNOWN_ROW = "unknown row"
    BEHIND = "metering is behind"
    """Not of a request: the sink did not reach the ends within the audit's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that does not hold; `details` names columns and both values."""

    request_id: str
    kind: Kind
    details: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metered:
    """The usage events of one id on the log."""

    usage: UsageRecorded
    """The first one's content."""
    places: tuple[Place, ...]
    equal: bool = True
    """Whether all copies have the same bytes."""
    row_is_due: bool = True
    """False where the sink had not committed past it when the store was read."""
    request_is_due: bool = True
    """False where it came after the audit had taken its ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the usage store holds."""

    rows: Sequence[UsageRow]
    physical_count: int
    disputed: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The audit's result. `explanation` holds the lines of a single request, if one was asked
    for."""

    differences: tuple[Difference, ...] = ()
    requests: int = 0
    """Ids whose record landed with a readable floor and whose reply ended."""
    unfinished: int = 0
    """Ids whose reply has not ended."""
    unreadable: int = 0
    """Ids whose floor retention removed: judged by their usage event alone."""
    usage_events: int = 0
    usage_repeated: int = 0
    """Usage events beyond the first of their request: legal, and counted once."""
    rows: int = 0
    collapsed: int = 0
    waited_s: float = 0.0
    output_tokens: int = 0
    cost_nano: int = 0
    explanation: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where everything holds, else 1."""
        return 1 if self.differences else 0

    def to_json(self) -> str:
        """Return the report as one JSON object."""
        return json.dumps({"holds": not self.differences, **asdict(self)}, indent=2)

    def render(self) -> str:
        """Return the report for people."""
        lines = list(self.explanation)
        if lines:
            lines.append("")
        lines.append(
            f"{self.requests} requests ended, {self.unfinished} unfinished, "
            f"{self.unreadable} beyond retention; {self.usage_events} usage events "
            f"({self.usage_repeated} of them again); "
            f"{self.rows} rows, {self.collapsed} copies collapsed; "
            f"{self.output_tokens} output tokens, {self.cost_nano} nano-units"
        )
        for difference in self.differences[:_SHOWN_MAX]:
            details = f": {difference.details}" if difference.details else ""
            lines.append(f"  {difference.request_id or '-'}  {difference.kind}{details}")
        if len(self.differences) > _SHOWN_MAX:
            lines.append(f"  ... and {len(self.differences) - _SHOWN_MAX} more (--json lists all)")
        lines.append(
            f"{len(self.differences)} differences: look at one with `millstream audit --request ID`"
            if self.differences
            else "log and ClickHouse agree"
        )
        return "\n".join(lines)


@dataclass(slots=True, kw_only=True)
class Findings:
    """Differences collected while comparing."""

    found: list[Difference] = field(default_factory=list)

    def add(self, request_id: str, kind: Kind, details: str = "") -> None:
        """Note one."""
        self.found.append(Difference(request_id=request_id, kind=kind, details=details))


def compare(
    expected: Mapping[str, UsageRecorded],
    metered: Mapping[str, Metered],
    stored: Stored,
    *,
    landed: Collection[str] | None = None,
    readable_from_ms: int = 0,
    unfinished: int = 0,
    unreadable: int = 0,
    waited_s: float = 0.0,
    behind: str = "",
) -> AuditReport:
    """Compare what replies say, what was metered and what is stored.

    Args:
        expected: usage of every id that ended and whose record landed with a readable floor.
        metered: every usage event still on the log, read after the store.
        landed: ids with a request record; None where retention has removed request records, so
        that an
            event without one proves nothing.
        readable_from_ms: rows accepted before this may have lost their usage event to retention.
        behind: says how far the sink is from the ends, if it did not reach them; empty if it did.
    """
    findings = Findings()
    _check_metering(expected, metered, landed, findings)
    _check_rows(metered, stored, readable_from_ms, findings)
    for request_id in stored.disputed:
        findings.add(request_id, Kind.UNEQUAL_COPIES, "copies of its row differ in the table")
    if behind:
        findings.add("", Kind.BEHIND, behind)
    return AuditReport(
        differences=tuple(findings.found),
        requests=len(expected),
        unfinished=unfinished,
        unreadable=unreadable,
        usage_events=sum(len(one.places) for one in metered.values()),
        usage_repeated=sum(len(one.places) - 1 for one in metered.values() if one.places),
        rows=len(stored.rows),
        collapsed=stored.physical_count - len(stored.rows),
        waited_s=round(waited_s, 3),
        output_tokens=sum(row.usage.output_tokens for row in stored.rows),
        cost_nano=sum(row.usage.cost_nano for row in stored.rows),
    )


def differing_columns(wanted: UsageRecorded, found: UsageRecorded) -> str:
    """Return `column: found instead of wanted` for each column that differs; empty if none does."""
    parts = []
    for item in structs.fields(UsageRecorded):
        want, have = getattr(wanted, item.name), getattr(found, item.name)
        if want != have:
            parts.append(f"{item.name}: {have!r} instead of {want!r}")
    return "; ".join(parts)


def _check_metering(
    expected: Mapping[str, UsageRecorded],
    metered: Mapping[str, Metered],
    landed: Collection[str] | None,
    findings: Findings,
) -> None:
    for request_id, usage in expected.items():
        event = metered.get(request_id)
        if event is None:
            findings.add(request_id, Kind.NOT_METERED)
        elif details := differing_columns(usage, event.usage):
            findings.add(request_id, Kind.WRONGLY_METERED, details)
    for request_id, event in metered.items():
        if not event.equal:
            places = ", ".join(f"{partition}@{offset}" for partition, offset in event.places)
            findings.add(request_id, Kind.UNEQUAL_EVENTS, f"usage.v1 {places}")
        if landed is not None and event.request_is_due and request_id not in landed:
            findings.add(request_id, Kind.METERED_WITHOUT_REQUEST)


def _check_rows(
    metered: Mapping[str, Metered], stored: Stored, readable_from_ms: int, findings: Findings
) -> None:
    seen: dict[str, UsageRow] = {}
    for row in stored.rows:
        request_id = row.usage.request_id
        if request_id in seen:
            details = differing_columns(seen[request_id].usage, row.usage)
            findings.add(request_id, Kind.SEVERAL_ROWS, details)
            continue
        seen[request_id] = row
        known = metered.get(request_id)
        if known is not None:
            _check_row(row, known, findings)
        elif row.usage.accepted_at_ms >= readable_from_ms:
            findings.add(request_id, Kind.UNKNOWN_ROW, "no usage event of it is on the log")
    for request_id, event in metered.items():
        if event.row_is_due and request_id not in seen:
            findings.add(request_id, Kind.MISSING_ROW)


def _check_row(row: UsageRow, event: Metered, findings: Findings) -> None:
    details = differing_columns(event.usage, row.usage)
    if (row.partition, row.offset) not in event.places:
        place = f"partition, offset: {row.partition}, {row.offset}, where no usage event of it is"
        details = f"{details}; {place}" if details else place
    if details:
        findings.add(row.usage.request_id, Kind.DIFFERENT_ROW, details)
