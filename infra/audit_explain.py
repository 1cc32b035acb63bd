"""Explains one request: its events in log order, which of them counted, and its row.

Owns the reading for one id and its lines. Called by `infra/audit.py`.
"""

from infra.audit_log import Snapshot, read_range
from infra.ports import Clock, LogReader, LogRecord, UsageRow, UsageStore
from schemas.codec import Undecodable, decode
from schemas.fold import ReplyFold
from schemas.replies import Closed, Delta, ReplyRecord, Start, fact_of
from schemas.requests import RequestAccepted
from schemas.usage import UsageRecorded, usage_of


async def explain(
    request_id: str, reader: LogReader, store: UsageStore, snapshot: Snapshot, clock: Clock
) -> tuple[str, ...]:
    """Return the lines. Raises LogError, StoreError."""
    needle = request_id.encode()
    lines = [f"request {request_id}"]
    async for record in read_range(reader, snapshot.requests, clock):
        if needle in record.value:
            lines += _of_request(record, request_id)
    fold = ReplyFold()
    async for record in read_range(reader, snapshot.replies, clock):
        if needle in record.value:
            lines += _of_replies(record, request_id, fold)
    if fold.end is None:
        state = "running" if fold.origin else "nothing on the log"
        lines.append(f"reply: {state}, {fold.accepted_count} tokens accepted")
    elif fold.origin is not None:
        usage = usage_of(request_id, fold)
        why = usage.stop_reason or f"closed: {usage.close_reason}"
        lines.append(
            f"reply: ended ({why}), {usage.input_tokens} input, {usage.cached_tokens} cached, "
            f"{usage.output_tokens} output tokens"
        )
    async for record in read_range(reader, snapshot.usage, clock):
        if needle in record.value:
            lines += _of_usage(record, request_id)
    rows = await store.rows(request_id)
    lines += [_of_row(row) for row in rows] or ["ClickHouse: no row"]
    return tuple(lines)


def _place(record: LogRecord) -> str:
    return f"{record.topic} {record.partition}@{record.offset} at {record.append_time_ms} ms"


def _of_request(record: LogRecord, request_id: str) -> list[str]:
    try:
        request = decode(record.value, RequestAccepted)
    except Undecodable as error:
        return [f"{_place(record)}: not decodable ({error})"]
    if request.request_id != request_id:
        return []
    return [
        f"{_place(record)}: accepted by {request.gateway}, org {request.identity.org}, reply in "
        f"partition {request.locator.partition} from {request.locator.floor}, "
        f"{len(request.prompt_token_ids)} prompt tokens, at most {request.sampling.max_tokens}"
    ]


def _of_replies(record: LogRecord, request_id: str, fold: ReplyFold) -> list[str]:
    try:
        facts = [fact_of(entry) for entry in decode(record.value, ReplyRecord).entries]
    except ValueError:  # undecodable, or an entry of nothing: every reader passes over it alike
        return []
    lines = []
    for fact in facts:
        if fact.request_id == request_id:
            counted = fold.apply(fact, record.append_time_ms)
            verdict = "counted" if counted else "did not count"
            lines.append(f"{_place(record)}: {_of_fact(fact)}, {verdict}")
    return lines


def _of_fact(fact: Start | Delta | Closed) -> str:
    if isinstance(fact, Start):
        return f"start of attempt {fact.attempt} by {fact.worker}"
    if isinstance(fact, Closed):
        return f"closed as {fact.reason} by {fact.by}"
    last = fact.first_index + len(fact.token_ids) - 1
    end = ", the end" if fact.terminal is not None else ""
    return f"tokens {fact.first_index}..{last} of attempt {fact.attempt}{end}"


def _of_usage(record: LogRecord, request_id: str) -> list[str]:
    try:
        usage = decode(record.value, UsageRecorded)
    except Undecodable:
        return []
    if usage.request_id != request_id:
        return []
    return [
        f"{_place(record)}: usage, {usage.input_tokens} input, {usage.cached_tokens} cached, "
        f"{usage.output_tokens} output tokens, {usage.cost_nano} nano-units"
    ]


def _of_row(row: UsageRow) -> str:
    usage = row.usage
    return (
        f"ClickHouse: row from usage.v1 {row.partition}@{row.offset}: {usage.input_tokens} input, "
        f"{usage.cached_tokens} cached, {usage.output_tokens} output tokens, "
        f"{usage.cost_nano} nano-units, org {usage.org}"
    )
