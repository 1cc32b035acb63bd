"""Quickly made dataclasses are what they were before, made in less time."""

from dataclasses import FrozenInstanceError, asdict, dataclass, replace
from typing import Any

import msgspec
import pytest

from schemas.quick_making import quickly_made


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """A pair."""

    first: int
    second: tuple[str, ...] = ()


@quickly_made
@dataclass(frozen=True, slots=True, kw_only=True)
class Quick:
    """The same pair."""

    first: int
    second: tuple[str, ...] = ()


def test_members_and_defaults_are_stored() -> None:
    """Whoever makes one gets all members, equality, a hash, and no way to change it."""
    made = Quick(first=1)
    assert (made.first, made.second) == (1, ())
    assert made == Quick(first=1, second=()) != Quick(first=1, second=("a",))
    assert hash(made) == hash(Plain(first=1))
    assert repr(made) == "Quick(first=1, second=())"
    with pytest.raises(FrozenInstanceError):
        made.first = 2  # type: ignore[misc] # that is the point


def test_libraries_make_and_read_them() -> None:
    """`replace`, `asdict` and msgspec see a dataclass like any other."""
    made = msgspec.convert({"first": 1, "second": ["a"]}, Quick)
    assert made == Quick(first=1, second=("a",))
    assert replace(made, first=2) == Quick(first=2, second=("a",))
    assert asdict(made) == {"first": 1, "second": ("a",)}
    assert msgspec.json.encode(made) == msgspec.json.encode(Plain(first=1, second=("a",)))


def test_wrong_members_are_refused() -> None:
    """Missing and unknown ones raise TypeError, as do ones without their name."""
    make: Any = Quick
    for given, named in (((), {}), ((), {"first": 1, "third": 2}), ((1,), {})):
        with pytest.raises(TypeError):
            make(*given, **named)
