"""Cache breakpoints of Anthropic's Messages API: their rules, though caching is automatic here.

Owns what `cache_control` may say and where. Blocks are told in the order of the prompt: tools,
system, messages, and the automatic breakpoint of the whole request last.
"""

from schemas.dialects import fields
from schemas.dialects.canonical import InvalidRequest

_BREAKPOINTS_MAX = 4
_TTLS = ("5m", "1h")


class CacheBreakpoints:
    """Counts breakpoints while a request is read."""

    def __init__(self) -> None:
        self._count = 0
        self._last_ttl: str | None = None
        """Of the newest block; None where it has no breakpoint."""
        self._shortened = False
        """True once a short-lived breakpoint stood: no longer one may follow."""

    def block(self, value: object, path: str) -> None:
        """Take the `cache_control` of the next block. Raises InvalidRequest."""
        self._last_ttl = None
        if value is None:
            return
        control = fields.as_object(value, path)
        fields.refuse_extra(control, ("type", "ttl"), path)
        fields.as_choice(fields.required(control, "type", path), f"{path}.type", ("ephemeral",))
        ttl = "5m"
        if control.get("ttl") is not None:
            ttl = fields.as_choice(control["ttl"], f"{path}.ttl", _TTLS)
        if ttl == "1h" and self._shortened:
            raise InvalidRequest(
                f"{path}.ttl", "a ttl of '1h' must not come after a ttl of '5m' in the prompt"
            )
        self._shortened = self._shortened or ttl == "5m"
        self._last_ttl = ttl
        self._count += 1

    def whole(self, value: object) -> None:
        """Take the request's own `cache_control`, which marks its last block; check the count.

        Raises: InvalidRequest.
        """
        marked = self._last_ttl
        if value is not None:
            shortened, self._shortened = self._shortened, False
            self.block(value, "cache_control")
            if marked is None and self._last_ttl == "1h" and shortened:
                raise InvalidRequest(
                    "cache_control.ttl", "a ttl of '1h' must not come after a ttl of '5m'"
                )
            if marked is not None and marked != self._last_ttl:
                raise InvalidRequest(
                    "cache_control.ttl", f"the last block is marked already, with a ttl of {marked}"
                )
            if marked is not None:
                self._count -= 1  # one breakpoint, said twice
        if self._count > _BREAKPOINTS_MAX:
            raise InvalidRequest(
                "",
                f"A maximum of {_BREAKPOINTS_MAX} blocks with cache_control may be provided. "
                f"Found {self._count}.",
            )
