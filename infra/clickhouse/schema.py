"""Tables and the views of usage (design rule 6.4), and how rows map to them.

Owns names, types, keys and comments. `usage_events` holds every copy of a row that was ever
inserted until a merge collapses copies of one request; people read the view `usage`, which reads
with FINAL. So does the view `usage_by_hour` over the sums in `usage_hourly`. Money is Int64
nano-units. Called by `apply` (through `create_tables` in `store`) and by the store adapter.

Which copy wins: the one with the highest offset, then the newest inserted. Copies of one id come
from equal usage events, so it matters only for the audit columns; a copy that differs otherwise is
what the audit looks for.
"""

from dataclasses import dataclass

from infra.ports import UsageRow
from schemas.replies import StageTimes
from schemas.usage import UsageRecorded

EVENTS = "usage_events"
HOURLY = "usage_hourly"
VIEW = "usage"
HOURLY_VIEW = "usage_by_hour"
ALL = (EVENTS, HOURLY, VIEW, HOURLY_VIEW)

_TIME = "DateTime64(3, 'UTC')"
_NAME = "LowCardinality(String)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of `usage_events`: its ClickHouse type and what it says to people."""

    name: str
    type: str
    comment: str

    @property
    def is_time(self) -> bool:
        """Tell whether it holds Unix milliseconds as a DateTime64."""
        return _TIME in self.type


def _column(name: str, type_: str, comment: str) -> Column:
    return Column(name=name, type=type_, comment=comment)


COLUMNS: tuple[Column, ...] = (
    _column(
        "request_id",
        "String",
        "UUID of the request, as in the log; the request-id header shows it as req_ and base62",
    ),
    _column("org", "String", "Organisation that is billed"),
    _column("workspace", "String", "Workspace of the API key"),
    _column("key_id", "String", "API key that asked"),
    _column("user", "Nullable(String)", "End user named by the client"),
    _column("alias", _NAME, "Model name that the client asked for"),
    _column("model", _NAME, "Model that served"),
    _column("model_version", _NAME, "Exact version of the model"),
    _column("pool", _NAME, "Pool of workers that served"),
    _column("region", "Nullable(String)", "Region that served; reserved"),
    _column("rollout_arm", "Nullable(String)", "Arm of a rollout; reserved"),
    _column("price_book_version", "Nullable(String)", "Price book that rates it; reserved"),
    _column("dialect", _NAME, "API that the client spoke: anthropic or openai"),
    _column("accepted_at", _TIME, "When the reply was first started or closed, UTC"),
    _column("first_token_at", f"Nullable({_TIME})", "When its first token was accepted, UTC"),
    _column("ended_at", _TIME, "When the reply ended, UTC"),
    _column("input_tokens", "Int64", "Prompt tokens billed, cached ones included"),
    _column("cached_tokens", "Int64", "Prompt tokens found in the prefix cache"),
    _column("output_tokens", "Int64", "Tokens accepted into the reply"),
    _column("cost_nano", "Int64", "Cost in nano-units of money; 0 until a price book rates it"),
    _column("stop_reason", "Nullable(String)", "Why generation stopped; null where it was closed"),
    _column("close_reason", "Nullable(String)", "Why the reply was closed; null where it ended"),
    _column("stage_taken_at", f"Nullable({_TIME})", "When a worker took the request, UTC"),
    _column("stage_started_at", f"Nullable({_TIME})", "When the engine started it, UTC"),
    _column(
        "stage_first_token_at", f"Nullable({_TIME})", "When the engine gave the first token, UTC"
    ),
    _column("stage_finished_at", f"Nullable({_TIME})", "When the engine finished it, UTC"),
    _column("partition", "Int32", "Partition of usage.v1 that holds the usage event"),
    _column("offset", "Int64", "Offset of the usage event in that partition"),
)

_KEY = "(org, toStartOfHour(accepted_at), request_id)"
_HOURLY_KEY = "org, hour, workspace, key_id, model"
_STAGES = ("taken_ms", "started_ms", "first_token_ms", "finished_ms")


def statements(database: str) -> tuple[str, ...]:
    """Return what makes the database, tables and views; each has no effect where its object
    exists."""
    return (
        f"CREATE DATABASE IF NOT EXISTS {quoted(database)}",
        f"""CREATE TABLE IF NOT EXISTS {place(database, EVENTS)} ({_definitions()},
            ingested_at {_TIME} DEFAULT now64(3) COMMENT 'When the row was inserted, UTC')
            ENGINE = ReplacingMergeTree(offset)
            PARTITION BY toYYYYMM(accepted_at) ORDER BY {_KEY}
            COMMENT 'One row per copy of a usage event; read the view usage'""",
        f"""CREATE TABLE IF NOT EXISTS {place(database, HOURLY)} (
            org String, hour DateTime('UTC'), workspace String, key_id String, model {_NAME},
            requests UInt64, input_tokens Int64, cached_tokens Int64, output_tokens Int64,
            cost_nano Int128, as_of DateTime64(6, 'UTC'))
            ENGINE = ReplacingMergeTree(as_of)
            PARTITION BY toYYYYMM(hour) ORDER BY ({_HOURLY_KEY})
            COMMENT 'Sums by hour, a row for each recomputation; read the view usage_by_hour'""",
        f"""CREATE VIEW IF NOT EXISTS {place(database, VIEW)} ({_definitions()})
            AS SELECT {column_list()} FROM {place(database, EVENTS)} FINAL
            COMMENT 'Usage: one row per request'""",
        f"""CREATE VIEW IF NOT EXISTS {place(database, HOURLY_VIEW)}
            AS SELECT {_HOURLY_KEY}, requests, input_tokens, cached_tokens, output_tokens, cost_nano
            FROM {place(database, HOURLY)} FINAL
            COMMENT 'Usage: sums by hour, one row per hour, workspace, key and model'""",
    )


def refresh_statement(database: str) -> str:
    """Return the recomputation of one org's hours; parameters `org` and `hours` (Unix seconds).

    `as_of` is taken before the rows are read, so that of two recomputations the later one has seen
    all that the earlier one saw.
    """
    return f"""INSERT INTO {place(database, HOURLY)}
        SELECT org, toStartOfHour(accepted_at) AS hour, workspace, key_id, model,
            count(), sum(input_tokens), sum(cached_tokens), sum(output_tokens), sum(cost_nano),
            now64(6)
        FROM {place(database, EVENTS)} FINAL
        WHERE org = {{org:String}}
            AND toStartOfHour(accepted_at) IN (
                SELECT toDateTime(arrayJoin({{hours:Array(UInt32)}}), 'UTC'))
        GROUP BY {_HOURLY_KEY}"""


def column_list(*, times_as_integers: bool = False) -> str:
    """Return all columns for a SELECT; times as DateTime64 or as Unix milliseconds."""
    if not times_as_integers:
        return ", ".join(f"`{column.name}`" for column in COLUMNS)
    return ", ".join(
        f"toUnixTimestamp64Milli(`{column.name}`)" if column.is_time else f"`{column.name}`"
        for column in COLUMNS
    )


def billed_columns() -> str:
    """Return the columns that must be equal in all copies of a request."""
    places = ("partition", "offset")
    return ", ".join(f"`{column.name}`" for column in COLUMNS if column.name not in places)


def values_of(row: UsageRow) -> tuple[object, ...]:
    """Return the row's values in the order of COLUMNS; times as Unix milliseconds."""
    usage, stages = row.usage, row.usage.stages
    return (
        usage.request_id,
        usage.org,
        usage.workspace,
        usage.key_id,
        usage.user,
        usage.alias,
        usage.model,
        usage.model_version,
        usage.pool,
        usage.region,
        usage.rollout_arm,
        usage.price_book_version,
        usage.dialect,
        usage.accepted_at_ms,
        usage.first_token_at_ms,
        usage.ended_at_ms,
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.cost_nano,
        usage.stop_reason,
        usage.close_reason,
        *(getattr(stages, name) if stages else None for name in _STAGES),
        row.partition,
        row.offset,
    )


def row_of(values: tuple[object, ...]) -> UsageRow:
    """Return the row of values in the order of COLUMNS; the inverse of `values_of`."""
    *billed, taken, started, first_token, finished, partition, offset = values
    stages = None
    if taken is not None:
        stages = StageTimes(
            taken_ms=taken,  # type: ignore[arg-type]  # the column's type says Int64
            started_ms=started,  # type: ignore[arg-type]  # likewise
            first_token_ms=first_token,  # type: ignore[arg-type]  # likewise
            finished_ms=finished,  # type: ignore[arg-type]  # likewise
        )
    names = [name for name in UsageRecorded.__struct_fields__ if name != "stages"]
    usage = UsageRecorded(**dict(zip(names, billed, strict=True)), stages=stages)  # type: ignore[arg-type]  # by the columns' types
    return UsageRow(usage=usage, partition=partition, offset=offset)  # type: ignore[arg-type]  # likewise


def place(database: str, table: str) -> str:
    """Return a table's full name fit for SQL."""
    return f"{quoted(database)}.{quoted(table)}"


def quoted(name: str) -> str:
    """Return an identifier fit for SQL."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _definitions() -> str:
    return ",\n".join(
        f"`{column.name}` {column.type} COMMENT '{column.comment}'" for column in COLUMNS
    )
