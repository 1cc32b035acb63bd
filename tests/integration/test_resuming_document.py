"""The helpers shown in docs/resuming.md do what the text says, against connections that break."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai

from tests.gateway_calls import MESSAGES, say
from tests.gateway_http import MODEL, Served, serve
from tests.gateway_streams import TEXT

DOCUMENT = Path(__file__).parents[2] / "docs" / "resuming.md"


def helper(name: str) -> Callable[..., Any]:
    """Return a function of the document by its name."""
    blocks = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    source = next(block for block in blocks if f"def {name}(" in block)
    space: dict[str, Any] = {}
    exec(compile(source, str(DOCUMENT), "exec"), space)
    found: Callable[..., Any] = space[name]
    return found


def interrupted(served: Served) -> Callable[[], None]:
    """Return what breaks off all open streams of the gateway, as its death would."""
    loop = asyncio.get_running_loop()

    def strike() -> None:
        loop.call_soon_threadsafe(served.platform.submission.close_all, "struck by the test")

    return strike


async def collected(items: Callable[[], Any], strike: Callable[[], None], texts: Any) -> str:
    """Read a helper's items in a thread, breaking the connection twice; return the text."""

    def read() -> str:
        text = ""
        for number, item in enumerate(items()):
            text += texts(item)
            if number in (3, 7):
                strike()
        return text

    return await asyncio.to_thread(read)


def test_the_anthropic_helper_yields_every_event_once() -> None:
    """Two cuts on the way change nothing of the text, and one request reaches the workers."""

    def text_of(event: Any) -> str:
        return str(event.delta.text) if event.type == "content_block_delta" else ""

    async def scenario() -> None:
        async with serve(say(TEXT, pause_s=0.05)) as served:
            with anthropic.Anthropic(base_url=served.url, api_key=served.key) as client:
                text = await collected(
                    lambda: helper("anthropic_events")(
                        client, model=MODEL, max_tokens=50, messages=MESSAGES
                    ),
                    interrupted(served),
                    text_of,
                )
            _check(served, text)

    asyncio.run(scenario())


def test_the_openai_helper_yields_every_chunk_once() -> None:
    """Two cuts on the way change nothing of the text, and one request reaches the workers."""

    def text_of(chunk: Any) -> str:
        return str(chunk.choices[0].delta.content or "") if chunk.choices else ""

    async def scenario() -> None:
        async with serve(say(TEXT, pause_s=0.05)) as served:
            with openai.OpenAI(base_url=f"{served.url}/v1", api_key=served.key) as client:
                text = await collected(
                    lambda: helper("openai_chunks")(client, model=MODEL, messages=MESSAGES),
                    interrupted(served),
                    text_of,
                )
            _check(served, text)

    asyncio.run(scenario())


def _check(served: Served, text: str) -> None:
    assert text == TEXT
    assert len(served.platform.worker.seen) == 1
    broken = [line for line in served.log.lines if line.get("reason") == "overloaded"]
    assert len(broken) == 2
