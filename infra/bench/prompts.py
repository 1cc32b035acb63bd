"""Prompts of a known length, each different from its first words on, so that none is cached.

Owns the words. The length in tokens is that of SmolLM2's tokenizer, chat template included.
"""

from collections.abc import Sequence

from infra.ports import Entropy

__all__ = ["KINDS", "body", "prompt", "prompts"]

KINDS = {"short": 20, "long": 370}
"""Words of a prompt: about 30 and 400 tokens of text, and the template's."""

_TEXT = (
    "river stone cloud market train apple music window garden letter bridge doctor winter summer "
    "silver forest island engine planet history coffee bottle dragon farmer teacher shadow castle "
    "mirror ocean desert camera pencil button guitar hammer jacket kitten lemon monkey needle "
    "orange pepper rabbit saddle ticket violin walnut yellow zebra anchor basket candle"
)
_WORDS = _TEXT.split()


def prompt(entropy: Entropy, kind: str) -> str:
    """Return one prompt of a kind."""
    words = (_WORDS[entropy.bits(16) % len(_WORDS)] for _ in range(KINDS[kind]))
    return f"Story {entropy.bits(20)}: {' '.join(words)}. Write about it."


def prompts(entropy: Entropy, kind: str, count: int) -> list[str]:
    """Return `count` different prompts of a kind."""
    return [prompt(entropy, kind) for _ in range(count)]


def body(model: str, text: str, tokens: int, *, stream: bool) -> dict[str, object]:
    """Return an OpenAI request for exactly `tokens` tokens; every system here understands it."""
    messages: Sequence[dict[str, str]] = [{"role": "user", "content": text}]
    return {
        "model": model,
        "messages": messages,
        "stream": stream,
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": tokens,
    }
