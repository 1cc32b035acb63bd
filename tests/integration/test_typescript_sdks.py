"""The official TypeScript SDKs against the gateway: streams, tools, errors.

Node is needed for this alone. Where it is absent the test is skipped on a developer's machine and
fails in CI. The SDKs are installed once per version, from a lock with hashes, beside the caches.
"""

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.config import DEFAULT_CACHE
from schemas.replies import CloseReason, StopReason
from schemas.requests import RequestAccepted
from tests.gateway_http import MODEL, byte_tokenizer, ids_of, serve
from tests.gateway_platform import FakeWorker

HERE = Path(__file__).resolve().parent.parent / "typescript"
IN_CI = os.environ.get("CI") == "true"
INSTALL_WITHIN_S = 120
CALLS_WITHIN_S = 60
TEXT = "Grüße, 世界"
CITIES = ("Paris", "Rome")
CALLS = "\n".join(
    f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'
    for city in CITIES
)


@pytest.fixture(scope="module")
def script() -> Path:
    """Return the script in a folder with the SDKs."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        if IN_CI:
            pytest.fail("CI needs Node.js and npm")
        pytest.skip("Node.js and npm are not installed")
    return installed(DEFAULT_CACHE / "typescript")


def installed(folder: Path) -> Path:
    """Return the script beside the SDKs that the lock names, installed where they are missing."""
    lock = (HERE / "package-lock.json").read_bytes()
    place = folder / hashlib.sha256(lock).hexdigest()[:16]
    done = place / "installed"
    if not done.exists():
        place.mkdir(parents=True, exist_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, place)
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=place, check=True, timeout=INSTALL_WITHIN_S)
        done.touch()
    shutil.copy(HERE / "sdk_calls.mjs", place)
    return place / "sdk_calls.mjs"


async def answer(worker: FakeWorker, request: RequestAccepted) -> None:
    """Reply as the last user message asks."""
    prompt = byte_tokenizer().decode(list(request.prompt_token_ids))
    asked = prompt.rpartition("user: ")[2] or prompt
    await worker.start(request)
    if "fail" in asked:
        await worker.say(request, *ids_of("ab"))
        await asyncio.sleep(0.05)
        await worker.close(request, CloseReason.FAILED)
        return
    for token in ids_of(CALLS if "tools" in asked else TEXT):
        await worker.say(request, token)
    await worker.say(request, stop=StopReason.END)


@pytest.fixture(scope="module")
def seen(script: Path) -> Any:
    """Return what the SDKs saw."""

    async def scenario() -> object:
        async with serve(answer) as served:
            process = await asyncio.create_subprocess_exec(
                *("node", str(script), served.url, served.key, MODEL),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            async with asyncio.timeout(CALLS_WITHIN_S):
                output, errors = await process.communicate()
            assert process.returncode == 0, errors.decode()
            return json.loads(output)

    return asyncio.run(scenario())


def test_anthropic_streams_equal_whole_replies(seen: Any) -> None:
    """Text and two parallel tool calls come out alike, streamed and whole, with the right stops."""
    calls = seen["anthropic"]
    for message in (calls["streamed"], calls["whole"]):
        assert [block["text"] for block in message["content"]] == [TEXT]
        assert message["stop_reason"] == "end_turn"
        assert message["usage"]["input_tokens"] == calls["counted"]["input_tokens"]
    assert "".join(calls["deltas"]) == TEXT and len(calls["deltas"]) > 3
    for message in (calls["tools"], calls["wholeTools"]):
        assert message["stop_reason"] == "tool_use"
        uses = [block for block in message["content"] if block["type"] == "tool_use"]
        assert [use["input"] for use in uses] == [{"city": city} for city in CITIES]
        assert len({use["id"] for use in uses}) == 2


def test_openai_streams_equal_whole_replies(seen: Any) -> None:
    """Text, parallel tool calls, completions and responses come out as they were said."""
    calls = seen["openai"]
    for completion in (calls["streamed"], calls["whole"]):
        (choice,) = completion["choices"]
        assert choice["message"]["content"] == TEXT and choice["finish_reason"] == "stop"
        assert completion["usage"]["completion_tokens"] == len(ids_of(TEXT))
    assert "".join(calls["deltas"]) == TEXT
    for completion in (calls["tools"], calls["wholeTools"]):
        (choice,) = completion["choices"]
        assert choice["finish_reason"] == "tool_calls"
        arguments = [
            json.loads(c["function"]["arguments"]) for c in choice["message"]["tool_calls"]
        ]
        assert arguments == [{"city": city} for city in CITIES]
        assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2
    assert calls["legacy"] == TEXT
    assert calls["responded"]["output"][0]["content"][0]["text"] == TEXT
    assert calls["responded"]["status"] == "completed"


def test_both_sdks_raise_the_right_errors(seen: Any) -> None:
    """Unknown model, bad field and bad key have their classes; a broken stream raises."""
    for name in ("anthropic", "openai"):
        calls = seen[name]
        for case, error, status in (
            ("unknown", "NotFoundError", 404),
            ("invalid", "BadRequestError", 400),
            ("keyless", "AuthenticationError", 401),
        ):
            found = calls[case]
            assert (found.get("error"), found.get("status")) == (error, status), (name, found)
            assert found["requestID"].startswith("req_")
        assert "value" not in calls["broken"], name
