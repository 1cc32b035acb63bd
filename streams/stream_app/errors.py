"""Errors of the stream-app.

StreamAppError
  DeliveryGap    records were left out on the way here; a restart delivers from the last commit
  DeliveryStalled records lie on the broker, but do not come
  Halted         a record was left unfinished; nothing after it may be committed
"""


class StreamAppError(Exception):
    """Base of what the stream-app raises on purpose; each ends the process, to be started again."""


class DeliveryGap(StreamAppError):
    """A record came whose predecessor never did."""

    def __init__(self, partition: int, expected: int, offset: int) -> None:
        super().__init__(f"partition {partition}: offset {expected} expected, {offset} delivered")
        self.partition, self.expected, self.offset = partition, expected, offset


class DeliveryStalled(StreamAppError):
    """Records that the broker holds were not delivered, though nothing was in their way."""

    def __init__(self, partition: int, expected: int, end: int) -> None:
        super().__init__(f"partition {partition}: nothing from {expected} to {end} was delivered")
        self.partition, self.expected, self.end = partition, expected, end


class Halted(StreamAppError):
    """Handling a record failed, and commits stopped below it."""
