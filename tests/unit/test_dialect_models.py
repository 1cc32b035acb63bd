"""GET /v1/models: one list for both APIs, paged."""

import pytest

from schemas.dialects.canonical import InvalidRequest
from schemas.dialects.models import ModelCard, model_list, model_object

CARDS = [
    ModelCard(id=name, display_name=name.upper(), created_ms=age, max_input_tokens=8, max_tokens=8)
    for name, age in (("a", 1_000), ("b", 3_000), ("c", 2_000))
]


def ids(page: dict[str, object]) -> list[str]:
    """Return the ids of a page."""
    assert isinstance(page["data"], list)
    return [model["id"] for model in page["data"]]


def test_model_has_the_members_of_both_apis() -> None:
    """Anthropic's `type` and `created_at` stand beside OpenAI's `object` and `created`."""
    model = model_object(CARDS[1])
    assert (model["type"], model["created_at"]) == ("model", "1970-01-01T00:00:03Z")
    assert (model["object"], model["created"], model["owned_by"]) == ("model", 3, "millstream")


def test_pages_run_from_the_newest_in_both_directions() -> None:
    """after_id goes towards older models, before_id towards newer ones."""
    assert ids(model_list(CARDS, {})) == ["b", "c", "a"]
    first = model_list(CARDS, {"limit": "2"})
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, "b", "c")
    last = model_list(CARDS, {"limit": "2", "after_id": "c"})
    assert (ids(last), last["has_more"]) == (["a"], False)
    newer = model_list(CARDS, {"limit": "1", "before_id": "a"})
    assert (ids(newer), newer["has_more"]) == (["c"], True)
    assert model_list([], {})["first_id"] is None


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "1001"},
        {"limit": "x"},
        {"limit": "²"},
        {"after_id": "z"},
        {"after_id": "a", "before_id": "a"},
    ],
)
def test_bad_pages_are_refused(query: dict[str, str]) -> None:
    """A limit out of range and an unknown cursor are 400s that name the parameter."""
    with pytest.raises(InvalidRequest) as refused:
        model_list(CARDS, query)
    assert refused.value.path in query
