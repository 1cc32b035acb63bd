"""The engine's own configuration files: caches and pools of a small process, grants and limits of
its user.

Owns the two XML files in the data folder, written anew at each start. The password stands in
neither: the front checks it before the engine sees a query.
"""

from pathlib import Path
from xml.sax.saxutils import escape

from schemas import limits

_MIB = limits.MIB
_SERVER: dict[str, object] = {
    # Usage rows are small and read by their sort key: caches of a few MiB hold all marks of years.
    "mark_cache_size": 16 * _MIB,
    "primary_index_cache_size": 16 * _MIB,
    "index_mark_cache_size": 4 * _MIB,
    "uncompressed_cache_size": 0,
    "compiled_expression_cache_size": 8 * _MIB,
    "query_condition_cache_size": 4 * _MIB,
    "mmap_cache_size": 64,
    "max_server_memory_usage": 2_048 * _MIB,
    # One merge at a time is plenty for a few inserts a second.
    "background_pool_size": 2,
    "background_schedule_pool_size": 2,
    "background_schedule_pool_initial_size": 2,
    "background_common_pool_size": 1,
    "max_thread_pool_free_size": 4,
    "max_io_thread_pool_size": 4,
    "timezone": "UTC",
}
_PROFILE: dict[str, object] = {
    "max_threads": 2,
    "max_memory_usage": 1_024 * _MIB,
    "max_execution_time": limits.CLICKHOUSE_QUERY_S_MAX,
    "max_result_bytes": limits.CLICKHOUSE_RESULT_BYTES_MAX,
    "result_overflow_mode": "throw",
    # A row changed by hand reads changed when the statement returns.
    "mutations_sync": 1,
}
_AT_MOST = ("max_memory_usage", "max_execution_time", "max_result_bytes")
# These name files on our disk, or choose a parser that the guard does not read.
_FIXED = (
    "dialect",
    "format_schema",
    "format_schema_source",
    "format_template_resultset",
    "format_template_row",
    "result_overflow_mode",
)
_ENGINES = (
    *(
        prefix + "MergeTree"
        for prefix in (
            "",
            "Aggregating",
            "Collapsing",
            "Replacing",
            "Summing",
            "VersionedCollapsing",
        )
    ),
    "Buffer",
    "Join",
    "Log",
    "Memory",
    "Null",
    "Set",
    "StripeLog",
    "TinyLog",
)
_PRIVILEGES = (
    "SHOW, SELECT, INSERT, ALTER, CREATE DATABASE, CREATE TABLE, CREATE VIEW, "
    "CREATE TEMPORARY TABLE, DROP, UNDROP TABLE, TRUNCATE, OPTIMIZE, CHECK, KILL QUERY, dictGet"
)


def write(folder: Path) -> Path:
    """Write both files into `folder`; return the path of the one the engine is started with."""
    users = folder / "users.xml"
    users.write_text(_users())
    config = folder / "config.xml"
    config.write_text(_document(_server(users)))
    return config


def _server(users: Path) -> str:
    settings = {**_SERVER, "users_config": users.absolute()}
    # Without this any table engine, File and URL among them, needs no grant.
    grants = (
        "<access_control_improvements>"
        "<table_engines_require_grant>true</table_engines_require_grant>"
        "</access_control_improvements>"
    )
    return _elements(settings) + grants


def _users() -> str:
    bounds = "".join(f"<{name}><max>{_PROFILE[name]}</max></{name}>" for name in _AT_MOST)
    fixed = "".join(f"<{name}><readonly/></{name}>" for name in _FIXED)
    grants = [f"GRANT {_PRIVILEGES} ON *.*"]
    grants += [f"GRANT TABLE ENGINE ON {engine}" for engine in _ENGINES]
    queries = "".join(f"<query>{escape(grant)}</query>" for grant in grants)
    return _document(
        f"<profiles><default>{_elements(_PROFILE)}"
        f"<constraints>{bounds}{fixed}</constraints></default></profiles>"
        "<users><default><password></password><profile>default</profile><quota>default</quota>"
        f"<grants>{queries}</grants></default></users>"
        "<quotas><default></default></quotas>"
    )


def _elements(settings: dict[str, object]) -> str:
    return "".join(f"<{name}>{escape(str(value))}</{name}>\n" for name, value in settings.items())


def _document(content: str) -> str:
    return f"<clickhouse>\n{content}</clickhouse>\n"
