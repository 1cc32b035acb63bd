"""Prompts: tokens of conversations, of tools, of raw texts and of token ids."""

import asyncio
import threading
from pathlib import Path

import pytest

from gateway.errors import Overloaded
from gateway.prompts import Prompts
from infra.prompt_text import Prompt
from infra.tokenizer import Tokenizer
from schemas.dialects.canonical import (
    CanonicalMessage,
    CanonicalRequest,
    InvalidRequest,
    Thinking,
    Tool,
    ToolChoice,
)
from tests.gateway_platform import canonical
from tests.unit.test_tokenizer import START, write_model
from tests.unit.test_tool_prompt import NATIVE

TOOL = Tool(name="f", description="F", schema={"type": "object"})


class Watched(Tokenizer):
    """A tokenizer that notes which thread it works in."""

    threads: set[str]

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the prompt's token ids."""
        self.threads.add(threading.current_thread().name)
        return super().encode(prompt)


def tokens(
    folder: Path, request: CanonicalRequest, template: str = NATIVE, context_tokens: int = 10_000
) -> tuple[str, set[str]]:
    """Return the text of a request's prompt tokens, and the threads that made them."""
    tokenizer = Watched.load(write_model(folder, template))
    tokenizer.threads = set()

    async def scenario() -> list[int]:
        prompts = Prompts(lambda: tokenizer, context_tokens)
        await prompts.load()
        return await prompts.tokens(request)

    ids = asyncio.run(scenario())
    decoder = tokenizer.decoder()
    return "".join(map(decoder.step, ids)), tokenizer.threads


def test_tools_and_thinking_are_part_of_the_prompt(tmp_path: Path) -> None:
    """Offered tools are shown, those of tool_choice none are not; thinking is passed on."""
    text, _ = tokens(tmp_path, canonical(tools=(TOOL,), thinking=Thinking(enabled=True)))
    assert '"name": "f"' in text and text.endswith("True")
    none = ToolChoice(mode="none")
    text, _ = tokens(tmp_path, canonical(tools=(TOOL,), tool_choice=none))
    assert '"name"' not in text and "True" not in text


def test_raw_prompts_are_taken_as_they_stand(tmp_path: Path) -> None:
    """A text is tokenized without a template, token ids are passed through."""
    assert tokens(tmp_path, canonical(messages=(), prompt="a fox"))[0] == "a fox"
    known = tuple(range(START, 6))
    tokenizer = Tokenizer.load(write_model(tmp_path))
    assert len(known) < tokenizer.vocabulary_size

    async def scenario() -> None:
        prompts = Prompts(lambda: tokenizer, 16)
        await prompts.load()
        assert await prompts.tokens(canonical(messages=(), prompt=known)) == list(known)
        for prompt, said in (
            ((tokenizer.vocabulary_size,), "prompt: token ids must be below"),
            ((1,) * 16, "prompt is too long: 16 tokens > 15 maximum"),
            ("", "prompt: must hold at least one token"),
        ):
            with pytest.raises(InvalidRequest, match=said):
                await prompts.tokens(canonical(messages=(), prompt=prompt))

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "request_",
    [
        canonical(messages=(CanonicalMessage(role="user", text="a" * 3_000),)),
        canonical(messages=(CanonicalMessage(role="user", text=""),) * 65),
        canonical(messages=(CanonicalMessage(role="assistant", text="", thinking="a" * 3_000),)),
        canonical(tools=(TOOL,)),
        canonical(messages=(), prompt="a" * 3_000),
    ],
)
def test_long_work_leaves_the_event_loop(tmp_path: Path, request_: CanonicalRequest) -> None:
    """Whatever makes a prompt long, a thread makes it; short ones are made at once."""
    main = threading.current_thread().name
    assert main not in tokens(tmp_path, request_)[1]
    assert tokens(tmp_path, canonical())[1] == {main}


def test_prompts_wait_for_the_tokenizer(tmp_path: Path) -> None:
    """Before it is loaded, requests are asked to come again."""

    async def scenario() -> None:
        prompts = Prompts(lambda: Tokenizer.load(write_model(tmp_path)), 100)
        with pytest.raises(Overloaded):
            await prompts.tokens(canonical())

    asyncio.run(scenario())
