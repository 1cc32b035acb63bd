"""Metering: usage events of `usage.v1` become rows of ClickHouse, exactly once in effect.

`intake` decides what to take, insert and commit (pure); `sink` polls, inserts, refreshes, commits.
"""

from streams.metering.sink import MeteringDeps, MeteringSink

__all__ = ["MeteringDeps", "MeteringSink"]
