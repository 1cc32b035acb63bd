"""Usage totals per org: what one usage record does to them. Pure; the agent in `app.py` applies it.

State, both in Faust tables whose changelogs are compacted topics, keyed per source partition:
`totals[org] = (sums, offset)`, the sums over every distinct request at or below that offset, and
`seen[request id] = (offset, append time)`, where the id first stood. A record is skipped where its
offset is not above the total's (delivered again) or its id was seen lower (emitted again).

Why the sums are exact after a kill -9 at any point. The two changelogs are written without any
order or atomicity between them, so a restart may find any mix of them. What holds it together:

1. A source offset is committed only after every changelog write of every record below it was
   acknowledged (`confirmations.py`; Faust's own acks are off: its flush before a commit gives up
   after 100 ms, it acks records that a rebalance made it skip, and it commits past a failed send).
2. A total carries the offset up to which it is whole. Found on disk, it holds exactly the distinct
   requests up to there, however much else was lost.
3. Delivery resumes at the committed offset r. For a record at o >= r:
   - o <= its total's offset: it is in the sums. Its `seen` may be lost: it is written again, or
     else a later copy of the id would count.
   - otherwise it is not in the sums. Is an id seen at p < o in them? If p < r, its total was
     persisted (1). If p >= r, it was delivered again before o, and counted or found counted.
     An id seen at p = o is this record itself, whose total was lost: it counts.
4. Where the broker gives a changelog back, the higher total and the lower `seen` win
   (`entries.py`), so an old write that landed late takes nothing away.

So the tables need no common key and no transaction. `seen` is kept as long as a request may be
delivered again (`expiry.py`). Published totals are true as soon as computed: any later run
computes the same, so a reader that keeps the highest `next_offset` per org and partition
converges, and duplicates are harmless.

A record on a partition that is not its org's own is counted in a total of that partition, and a
reader adds an org's partitions up; only copies of one id over several partitions are beyond this
(ClickHouse, the billing truth, collapses those).
"""

from dataclasses import dataclass

from schemas.usage import UsageRecorded, UsageTotals, month_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OrgTotal:
    """Sums over the distinct requests of one org in one partition, up to `offset` inclusive."""

    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    cost_nano: int
    offset: int
    month: int = 0
    """The newest month of its requests; 0 where an earlier release kept none."""
    month_input_tokens: int = 0
    month_output_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Folded:
    """What a record left behind: the total, where its id first stood, and what to publish."""

    total: OrgTotal | None
    """None only for an id that was seen lower under another org, which is nobody's record."""
    seen_offset: int
    publish: UsageTotals | None
    """None where the record was skipped."""


def fold_usage(
    total: OrgTotal | None,
    seen_offset: int | None,
    usage: UsageRecorded,
    partition: int,
    offset: int,
) -> Folded:
    """Count a usage record, or skip it where it is in the sums already."""
    first_offset = offset if seen_offset is None else min(seen_offset, offset)
    in_sums = total is not None and offset <= total.offset
    if in_sums or first_offset < offset:
        return Folded(total=total, seen_offset=first_offset, publish=None)
    month, month_input_tokens, month_output_tokens = _month(total, usage)
    counted = OrgTotal(
        requests=(total.requests if total else 0) + 1,
        input_tokens=(total.input_tokens if total else 0) + usage.input_tokens,
        cached_tokens=(total.cached_tokens if total else 0) + usage.cached_tokens,
        output_tokens=(total.output_tokens if total else 0) + usage.output_tokens,
        cost_nano=(total.cost_nano if total else 0) + usage.cost_nano,
        offset=offset,
        month=month,
        month_input_tokens=month_input_tokens,
        month_output_tokens=month_output_tokens,
    )
    return Folded(
        total=counted,
        seen_offset=first_offset,
        publish=published(usage.org, partition, counted),
    )


def published(org: str, partition: int, total: OrgTotal) -> UsageTotals:
    """Return the event that tells readers an org's total of one partition."""
    return UsageTotals(
        org=org,
        requests=total.requests,
        input_tokens=total.input_tokens,
        cached_tokens=total.cached_tokens,
        output_tokens=total.output_tokens,
        cost_nano=total.cost_nano,
        partition=partition,
        next_offset=total.offset + 1,
        month=total.month,
        month_input_tokens=total.month_input_tokens,
        month_output_tokens=total.month_output_tokens,
    )


def _month(total: OrgTotal | None, usage: UsageRecorded) -> tuple[int, int, int]:
    """Return the newest month and its sums behind a record; one of an earlier month is late."""
    month = month_of(usage.accepted_at_ms)
    if total is None or month > total.month:
        return month, usage.input_tokens, usage.output_tokens
    if month < total.month:
        return total.month, total.month_input_tokens, total.month_output_tokens
    return (
        month,
        total.month_input_tokens + usage.input_tokens,
        total.month_output_tokens + usage.output_tokens,
    )
