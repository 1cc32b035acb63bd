"""Stop strings over every small text: what is held back, shown and cut agrees with the engine."""

from itertools import product

import pytest

from schemas.assembler.held_text import HeldText
from tests.assembler_cases import engine_stop, token_ids

TEXTS = ["".join(letters) for size in range(8) for letters in product("ab", repeat=size)]
STOPS = [
    *[("".join(letters),) for size in range(1, 5) for letters in product("ab", repeat=size)],
    *[("ab", "ababb"), ("b", "abb", "aabb"), ("aab", "aba")],
]


@pytest.mark.parametrize("min_tokens", [0, 1, 3, 5])
@pytest.mark.parametrize("stops", STOPS, ids="-".join)
def test_every_small_text_ends_as_the_engine_ends_it(
    stops: tuple[str, ...], min_tokens: int
) -> None:
    """Self-overlapping, nested and let-pass stop strings leave exactly the engine's text."""
    for text in TEXTS:
        ids, stop, expected = engine_stop(token_ids(text), stops, min_tokens)
        held, shown = HeldText(stops), ""
        for token_id in ids:
            shown += held.push(chr(token_id))
            assert expected.startswith(shown), (text, stops)
        assert shown + held.end(stop.stop_sequence) == expected, (text, stops)


def test_long_stop_strings_cost_time_in_the_text_alone() -> None:
    """A stop string that nearly matches all along is followed in one pass over the text."""
    held = HeldText(("a" * 1_000 + "b",))
    shown = "".join(held.push("a" * 50) for _ in range(2_000))
    assert len(shown) == 2_000 * 50 - 1_000


def test_without_stop_strings_nothing_is_held() -> None:
    """Text passes through unchanged."""
    held = HeldText(())
    assert (held.push("a"), held.end(None)) == ("a", "")


def test_match_that_more_text_followed_is_forgotten() -> None:
    """An end whose stop string the last text did not complete cuts nothing."""
    held = HeldText(("END",))
    assert held.push("END") == ""
    assert held.push("xE") == "ENDx"
    assert held.end("END") == "E"
