"""ClickHouse: the usage store and its tables. The embedded server (`front`) is imported only by
its process."""

from infra.clickhouse.store import Address, ClickHouseUsageStore, create_tables

__all__ = ["Address", "ClickHouseUsageStore", "create_tables"]
