"""Errors of the infrastructure layer.

InfraError
  LogError
    SendRefused        nothing was appended
    SendUnknown        the outcome is unknown; it may still land
    OffsetUnreadable   below the log's start or beyond its end
    CommitRefused      this member's generation is over; nothing was committed
    LogUnavailable     the broker cannot be reached; nothing changed
  StoreError
    StoreUnavailable   repeat the same call
    StoreRejected      repeating will not help
  Poison               a record that cannot be handled (topic, partition, offset)
  ConfigError          all bad settings at once
  StartupError         what the operator has to do before it can start
"""


class InfraError(Exception):
    """Base of all errors that infra raises on purpose."""


class LogError(InfraError):
    """Something about the Kafka log."""


class SendRefused(LogError):
    """Nothing was appended, and repeating will not help."""


class SendUnknown(LogError):
    """The record may have been appended, or may land later."""


class OffsetUnreadable(LogError):
    """A position is not in the log any more."""

    def __init__(self, topic: str, partition: int, offset: int) -> None:
        super().__init__(f"{topic}-{partition}: offset {offset} is not in the log")
        self.topic, self.partition, self.offset = topic, partition, offset


class CommitRefused(LogError):
    """The group's generation has moved on; nothing was committed."""


class LogUnavailable(LogError):
    """The broker did not answer within the bound."""


class StoreError(InfraError):
    """Something about the usage store."""


class StoreUnavailable(StoreError):
    """Nothing was stored, or it is unknown; the same call may be repeated."""


class StoreRejected(StoreError):
    """The store refused the rows themselves."""


class Poison(InfraError):
    """A record that cannot be handled; goes to `dead-letters.v1`."""

    def __init__(self, topic: str, partition: int, offset: int, reason: str) -> None:
        super().__init__(f"{topic}-{partition}@{offset}: {reason}")
        self.topic, self.partition, self.offset, self.reason = topic, partition, offset, reason


class ConfigError(InfraError):
    """One or more settings are wrong; the message lists every one."""


class StartupError(InfraError):
    """The platform cannot start here; the message says what to do."""
