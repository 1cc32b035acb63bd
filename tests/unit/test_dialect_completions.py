"""OpenAI's Completions and Embeddings: what is read, and what is refused."""

import pytest

from schemas.dialects import completions, embeddings
from schemas.dialects.canonical import CanonicalRequest, InvalidRequest, OutputFormat
from schemas.requests import Dialect


def read(prompt: object = "Once", **changes: object) -> CanonicalRequest:
    """Return what a body with this prompt is read as."""
    return completions.parse({"model": "m", "prompt": prompt, **changes}, "v1")


def refusal(prompt: object = "Once", **changes: object) -> InvalidRequest:
    """Return what refuses such a body."""
    with pytest.raises(InvalidRequest) as refused:
        read(prompt, **changes)
    return refused.value


def test_minimal_request_gets_the_documented_defaults() -> None:
    """Sixteen tokens, one choice, no template."""
    assert read() == CanonicalRequest(
        dialect=Dialect.COMPLETIONS,
        dialect_version="v1",
        model="m",
        messages=(),
        prompt="Once",
        max_tokens=16,
    )


@pytest.mark.parametrize(
    ("prompt", "known"),
    [
        ("", ""),
        (["Once"], "Once"),
        ([1, 2], (1, 2)),
        ([[3]], (3,)),
    ],
)
def test_one_prompt_is_read_in_every_form(prompt: object, known: object) -> None:
    """A text or token ids, alone or in a list."""
    assert read(prompt).prompt == known


@pytest.mark.parametrize(
    ("prompt", "path"),
    [
        (None, "prompt"),
        ([], "prompt"),
        ([[]], "prompt.0"),
        (["a", "b"], "prompt"),
        ([[1], [2]], "prompt"),
        ([1, "a"], "prompt.1"),
        ([1, True], "prompt.1"),
        ([1, -1], "prompt.1"),
        ([2**31], "prompt.0"),
        ([1.5], "prompt.0"),
        (["\ud800"], "prompt.0"),
    ],
)
def test_bad_prompts_are_refused(prompt: object, path: str) -> None:
    """What is wrong is named by its place."""
    assert refusal(prompt).path == path


def test_all_members_are_read() -> None:
    """Sampling, log probabilities, usage and vLLM's extensions."""
    given = read(
        max_tokens=5,
        stop=["a"],
        n=2,
        best_of=2,
        logprobs=5,
        echo=False,
        suffix="",
        stream=True,
        stream_options={"include_usage": True},
        ignore_eos=True,
        min_tokens=5,
        guided_regex="a*",
        user="u",
    )
    assert (given.max_tokens, given.stop, given.choices, given.logprobs) == (5, ("a",), 2, 5)
    assert given.include_usage and given.ignore_eos and given.user == "u"
    assert given.output == OutputFormat(kind="regex", pattern="a*", path="guided_regex")


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"min_tokens": 17}, "min_tokens"),
    ],
)
def test_what_cannot_be_honoured_is_refused(changes: dict[str, object], path: str) -> None:
    """Echoing, suffixes and picking the best of many are named."""
    assert refusal(**changes).path == path


def test_defaults_of_vllm_that_its_clients_send_pass() -> None:
    """Values that say what holds anyway ask for nothing; others are refused by name."""
    read(skip_special_tokens=True, add_special_tokens=True, length_penalty=1.0, priority=0)
    for name, value in (
        ("skip_special_tokens", False),
        ("use_beam_search", True),
        ("prompt_logprobs", 0),
        ("length_penalty", True),
    ):
        assert refusal(**{name: value}).path == name


def test_embedding_requests_are_read() -> None:
    """Texts and token ids in every form."""
    forms: list[tuple[object, tuple[object, ...]]] = [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2]], ((1,), (2,))),
    ]
    for given, known in forms:
        body = {"model": "m", "input": given, "encoding_format": "base64", "dimensions": 8}
        assert embeddings.parse(body, "v1").inputs == known


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", 1]}, "input.1"),
        ({"input": [[]]}, "input.0"),
        ({"input": [1, None]}, "input.1"),
        ({"input": ["a"] * 2_049}, "input"),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "x": 1}, "x"),
    ],
)
def test_bad_embedding_requests_are_refused(changes: dict[str, object], path: str) -> None:
    """What is wrong with them is told before that no model makes any."""
    with pytest.raises(InvalidRequest) as refused:
        embeddings.parse({"model": "m", **changes}, "v1")
    assert refused.value.path == path
