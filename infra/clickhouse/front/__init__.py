"""The embedded ClickHouse: chDB's engine behind ClickHouse's HTTP interface.

`sql` reads statements, `guard` refuses what clients may not do, `engine` owns chDB, `compression`
and `statuses` follow the HTTP interface, `app` puts them together. Nothing outside imports this
package but `infra/clickhouse/__main__.py`: importing it loads the engine.
"""
