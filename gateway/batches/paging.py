"""Pages of a list by ids, as both APIs ask for them. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from schemas.dialects.canonical import InvalidRequest, shown

__all__ = ["Page", "page_of"]

Entry = TypeVar("Entry")


class Page(Struct, Generic[Entry], frozen=True, kw_only=True):
    """One page, in the list's order."""

    entries: tuple[Entry, ...]
    has_more: bool
    """Whether there are more in the direction that was asked for."""


def page_of(
    ordered: Sequence[Entry],
    id_of: Callable[[Entry], str],
    query: Mapping[str, str],
    *,
    after: str,
    before: str | None,
    limit: int,
    limit_max: int,
) -> Page[Entry]:
    """Return the page that a query asks for.

    Args: `after` and `before` are the names of the cursors, `limit` what is given unasked.

    Raises: InvalidRequest for a bad limit, for both cursors at once, for a cursor of no entry.
    """
    size = _limit(query.get("limit"), limit, limit_max)
    after_id = query.get(after)
    before_id = query.get(before) if before is not None else None
    if after_id is not None and before_id is not None:
        raise InvalidRequest(before or "", f"give either {after} or {before}")
    ids = [id_of(entry) for entry in ordered]
    if after_id is not None:
        rest = ordered[_place(ids, after_id, after) + 1 :]
    elif before_id is not None:
        rest = ordered[: _place(ids, before_id, before or "")]
        return Page(entries=tuple(rest[-size:]), has_more=len(rest) > size)
    else:
        rest = ordered
    return Page(entries=tuple(rest[:size]), has_more=len(rest) > size)


def _limit(value: str | None, default: int, limit_max: int) -> int:
    if value is None:
        return default
    if not (value.isascii() and value.isdigit() and len(value) <= len(str(limit_max))):
        raise InvalidRequest("limit", f"must be an integer between 1 and {limit_max}")
    size = int(value)
    if not 1 <= size <= limit_max:
        raise InvalidRequest("limit", f"must be between 1 and {limit_max}")
    return size


def _place(ids: Sequence[str], wanted: str, name: str) -> int:
    try:
        return ids.index(wanted)
    except ValueError:
        raise InvalidRequest(name, f"there is no '{shown(wanted)}' in this list") from None
