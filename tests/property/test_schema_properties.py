"""Laws of structured output: whatever follows a grammar follows the client's schema."""

import json
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.grammar_compiler.checking import Checker
from infra.guidance import Guidance, Matcher
from schemas.dialects.canonical import InvalidRequest
from schemas.json_schema import enforceable
from tests.gateway_http import byte_tokenizer
from tests.integration.platform import SOAK
from tests.schemas.stored import StoredSchema, stored_schemas

WALKS = 400 if SOAK else 5
TOKENS_MAX = 400
CLOSING = [ord(character) for character in '"}],: 0']
_BYTES = byte_tokenizer()
_IDS = {text: _BYTES.token_to_id(text) for text in _BYTES.get_vocab()}
_TEXT_OF = {token: text for text, token in _IDS.items()}
END = 256


@pytest.fixture(scope="module")
def guidance() -> Guidance:
    """Return llguidance over one token per byte and an end token."""
    made = byte_tokenizer()
    made.add_special_tokens(["<end>"])
    return Guidance(made.to_str(), vocab_size=257, eos_id=END)


def draws(matcher: Matcher, seed: int) -> Iterator[int]:
    """Yield tokens that a grammar allows, drawn so that replies end soon; raises at a dead end."""
    generator = random.Random(seed)
    closing = [token for text in CLOSING if (token := _IDS.get(chr(text))) is not None]
    for _ in range(TOKENS_MAX):
        allowed = matcher.allowed()
        if matcher.complete and (matcher.stopped or generator.random() < 0.7):
            return
        assert not matcher.stopped, "a dead end"
        free = [token for token in range(END) if allowed >> token & 1]
        preferred = [token for token in closing if allowed >> token & 1]
        token = generator.choice(preferred if preferred and generator.random() < 0.6 else free)
        assert matcher.take([token])
        yield token
    raise TimeoutError


@pytest.mark.parametrize("stored", stored_schemas(), ids=lambda stored: stored.name)
def test_what_follows_the_grammar_follows_the_schema(
    stored: StoredSchema, guidance: Guidance
) -> None:
    """Random replies under a stored schema's grammar are JSON that a validator accepts."""
    try:
        made = enforceable(stored.schema, "schema")
        grammar = json.dumps({"json_schema": made})
        error = Checker(guidance).check(grammar)
    except InvalidRequest as refused:
        error = refused.message
    assert (error is not None) == stored.refused, error
    if stored.refused:
        return
    ended = 0
    matcher = guidance.matcher(grammar)
    for seed in range(WALKS):
        try:
            tokens = list(draws(matcher.copy(), seed))
        except TimeoutError:
            continue
        text = _BYTES.decode(tokens)
        assert stored.problems(json.loads(text)) == [], text
        ended += 1
    assert ended, "no reply ended"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=10,
)
KEYWORDS = st.sampled_from(
    [
        *("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf", "items", "prefixItems"),
        *("properties", "patternProperties", "additionalProperties", "propertyNames", "required"),
        *("minimum", "exclusiveMaximum", "multipleOf", "maxItems", "minProperties", "format"),
        *("pattern", "not", "$defs", "$id", "$anchor", "additionalItems", "unevaluatedItems"),
    ]
)
SCHEMAS = st.recursive(
    st.dictionaries(KEYWORDS, JSON, max_size=4),
    lambda inner: st.dictionaries(
        KEYWORDS,
        inner | st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner),
        max_size=4,
    ),
    max_leaves=12,
)


@settings(max_examples=2_000 if SOAK else 200, deadline=None)
@given(SCHEMAS | JSON)
def test_schemas_are_rewritten_or_refused(schema: object) -> None:
    """Whatever a client sends as a schema ends in a schema or in an error that names a place."""
    try:
        made = enforceable(schema, "s")
    except InvalidRequest as error:
        assert error.path.startswith("s") and error.reason
    else:
        assert isinstance(made, dict | bool)
        json.dumps(made).encode()
