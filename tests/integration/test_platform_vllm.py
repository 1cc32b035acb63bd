"""The platform with the real engine: a real answer, the same through every client, and what a
crash of the engine does to them."""

import asyncio
import json
import time
from collections.abc import Callable

import anthropic
import httpx
import openai
import psutil
import pytest

from schemas import limits
from tests.integration.load import CUT, HANG_S, Load, Reply, ask, sdks
from tests.integration.platform import MODEL, SOAK, Platform, eventually

pytestmark = pytest.mark.vllm

QUESTION = "What is the capital of France? Answer in one sentence."
MESSAGES: list[dict[str, str]] = [{"role": "user", "content": QUESTION}]
MAX_TOKENS = 40
READY_WITHIN_S = 45.0 if SOAK else 90.0
PSS_BYTES_MAX = 6 * 1_024 * limits.MIB
REQUESTS, CONCURRENT = (200, 32) if SOAK else (32, 16)
BACK_WITHIN_S = 150.0
STEP_S = 0.5
VERSION = {"anthropic-version": "2023-06-01"}
GREEDY = {"temperature": 0}


def test_it_is_ready_in_time_and_says_so_until_then(vllm_platform: Platform) -> None:
    """While the model loads every request gets 529 with retry-after, none a refused connection."""
    statuses = [answer.status for answer in vllm_platform.while_starting]
    print(f"ready after {vllm_platform.ready_after_s:.1f} s; {len(statuses)} answers meanwhile")
    assert vllm_platform.ready_after_s < READY_WITHIN_S
    assert statuses.count(529) > 3 and set(statuses) <= {529, 200}, vllm_platform.while_starting
    for answer in vllm_platform.while_starting:
        assert answer.status != 529 or answer.retry_after


def test_ask_knows_the_capital(vllm_platform: Platform) -> None:
    """`millstream ask` prints an answer with Paris."""
    done = vllm_platform.command("ask", QUESTION)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def test_every_client_gets_the_same_text(vllm_platform: Platform) -> None:
    """Plain HTTP and both SDKs, sync and async, streamed or not, agree on text and usage at
    temperature 0, one at a time."""
    replies: dict[str, tuple[str, int, int]] = {}
    for stream in (False, True):
        for name, call in _sync_calls(vllm_platform, stream).items():
            replies[f"{name}, stream={stream}"] = call()
    for reply in asyncio.run(_ask_all(vllm_platform)):
        name = f"{reply.dialect} async, stream={reply.stream}"
        replies[name] = (reply.text, reply.input_tokens, reply.output_tokens)
    print(f"{len(replies)} clients: {next(iter(replies.values()))}")
    assert len(replies) == 12
    assert len(set(replies.values())) == 1, replies
    assert "Paris" in next(iter(replies.values()))[0]


@pytest.mark.parametrize("dialect", ["anthropic", "openai"])
def test_stop_sequences_and_max_tokens_end_replies(vllm_platform: Platform, dialect: str) -> None:
    """A stop sequence is left out of the text and named, max_tokens is kept, and streams say what
    whole replies say, usage too."""
    stop_field = "stop_sequences" if dialect == "anthropic" else "stop"
    reasons = ("stop_sequence", "max_tokens") if dialect == "anthropic" else ("stop", "length")

    async def scenario() -> None:
        async with sdks(vllm_platform.url, vllm_platform.key) as clients:

            async def send(stream: bool, max_tokens: int, **extra: object) -> Reply:
                return await ask(
                    clients, dialect, QUESTION, stream=stream, max_tokens=max_tokens, **extra
                )

            whole = await send(False, MAX_TOKENS, **GREEDY)
            stop = whole.text.split()[3]
            for more, tokens, reason in (
                ({stop_field: [stop]}, MAX_TOKENS, reasons[0]),
                ({}, 3, reasons[1]),
            ):
                plain, streamed = [
                    await send(stream, tokens, **GREEDY, **more) for stream in (False, True)
                ]
                assert (plain.stop, streamed.stop) == (reason, reason)
                assert plain.text == streamed.text
                assert plain.output_tokens == streamed.output_tokens <= tokens
                assert plain.input_tokens == streamed.input_tokens == whole.input_tokens
                assert whole.text.startswith(plain.text)
                assert not more or plain.text == whole.text[: whole.text.index(stop)]
            assert plain.output_tokens == 3

    asyncio.run(scenario())


def test_a_client_that_leaves_stops_the_engine(vllm_platform: Platform) -> None:
    """A disconnect mid-stream reaches the engine within 1 s and a step, and is billed once."""

    async def leave() -> None:
        async with sdks(vllm_platform.url, vllm_platform.key) as clients:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2.0):
                    await ask(clients, "anthropic", "Go on", stream=True, max_tokens=3_000,
                              ignore_eos=True)  # fmt: skip

    asyncio.run(leave())
    left_s = time.monotonic()
    eventually(lambda: vllm_platform.engine_load() == 0, 1.0 + STEP_S, "the engine dropped it")
    print(f"dropped after {time.monotonic() - left_s:.2f} s")
    report = vllm_platform.check_audit()
    assert report["unfinished"] == 0


def test_memory_after_many_requests(vllm_platform: Platform) -> None:
    """After requests of all kinds at once the whole tree holds at most 6 GiB (PSS), and the audit
    agrees."""

    async def scenario() -> Load:
        async with sdks(vllm_platform.url, vllm_platform.key) as clients:
            load, slots = Load(clients, tokens=lambda n: 4 + n % 9), asyncio.Semaphore(CONCURRENT)

            async def send() -> None:
                async with slots:
                    await load.send_next()

            await asyncio.gather(*(send() for _ in range(REQUESTS)))
            return load

    load = asyncio.run(scenario())
    assert load.failed == []
    sizes = {process: process.memory_full_info().pss for process in vllm_platform.tree()}
    print(f"PSS {sum(sizes.values()) / 1_024 / limits.MIB:.2f} GiB: {_largest(sizes)}")
    assert sum(sizes.values()) <= PSS_BYTES_MAX
    vllm_platform.check_audit()


def test_kill_of_the_worker_mid_reply_is_never_a_clean_end(vllm_platform: Platform) -> None:
    """kill -9 of the worker with vLLM: running replies get a clear error by their deadline, it is
    restarted, requests succeed again, and the audit agrees."""

    async def scenario() -> tuple[float, float]:
        async with sdks(vllm_platform.url, vllm_platform.key) as clients:
            running = [
                asyncio.create_task(
                    ask(clients, dialect, "Go on", stream=stream, max_tokens=2_000, ignore_eos=True)
                )
                for dialect in ("anthropic", "openai")
                for stream in (True, False)
            ]
            await asyncio.sleep(1.5)
            killed = await asyncio.to_thread(vllm_platform.kill, "worker-0")
            began_s = time.monotonic()
            for error in await asyncio.gather(*running, return_exceptions=True):
                assert isinstance(error, CUT) and str(error), repr(error)
            errors_s = time.monotonic() - began_s
            back_s = await asyncio.to_thread(
                vllm_platform.wait_back, "worker-0", killed, BACK_WITHIN_S
            )
            return errors_s, back_s

    errors_s, back_s = asyncio.run(scenario())
    print(f"errors after {errors_s:.1f} s, back {back_s:.1f} s later")
    assert errors_s < HANG_S
    replies = asyncio.run(_ask_all(vllm_platform))
    assert len({reply.text for reply in replies}) == 1
    vllm_platform.check_audit()


async def _ask_all(platform: Platform) -> list[Reply]:
    """Ask through both async SDKs, streamed and not, one at a time."""
    async with sdks(platform.url, platform.key) as clients:
        return [
            await ask(clients, dialect, QUESTION, stream=stream, max_tokens=MAX_TOKENS, **GREEDY)
            for dialect in ("anthropic", "openai")
            for stream in (False, True)
        ]


def _sync_calls(platform: Platform, stream: bool) -> dict[str, Callable[[], tuple[str, int, int]]]:
    """Return one call per sync client; each gives text, input and output tokens."""
    return {
        "anthropic": lambda: _anthropic(platform, stream),
        "openai": lambda: _openai(platform, stream),
        "plain messages": lambda: _plain(platform, "/v1/messages", stream),
        "plain completions": lambda: _plain(platform, "/v1/chat/completions", stream),
    }


def _anthropic(platform: Platform, stream: bool) -> tuple[str, int, int]:
    with anthropic.Anthropic(
        base_url=platform.url, api_key=platform.key, default_headers=VERSION
    ) as client:
        request = {"messages": MESSAGES, "max_tokens": MAX_TOKENS, "extra_body": GREEDY}
        if stream:
            with client.messages.stream(model=MODEL, **request) as events:  # type: ignore[arg-type]  # plain dicts
                message: anthropic.types.Message = events.get_final_message()
        else:
            message = client.messages.create(model=MODEL, **request)  # type: ignore[call-overload]  # likewise
    (block,) = message.content
    assert block.type == "text"
    usage = message.usage
    given = usage.input_tokens + (usage.cache_read_input_tokens or 0)
    return block.text, given, usage.output_tokens


def _openai(platform: Platform, stream: bool) -> tuple[str, int, int]:
    with openai.OpenAI(base_url=f"{platform.url}/v1", api_key=platform.key) as client:
        request = {"messages": MESSAGES, "max_completion_tokens": MAX_TOKENS, **GREEDY}
        create = client.chat.completions.create
        if not stream:
            whole = create(model=MODEL, **request)  # type: ignore[call-overload]  # plain dicts
            text, usage = whole.choices[0].message.content, whole.usage
        else:
            text, usage = "", None
            options = {"include_usage": True}
            for chunk in create(model=MODEL, **request, stream=True, stream_options=options):  # type: ignore[call-overload]  # likewise
                usage = chunk.usage or usage
                text += "".join(choice.delta.content or "" for choice in chunk.choices)
    return text, usage.prompt_tokens, usage.completion_tokens


def _plain(platform: Platform, path: str, stream: bool) -> tuple[str, int, int]:
    """Call as curl would; a stream is read line by line."""
    body = {"model": MODEL, "messages": MESSAGES, "max_tokens": MAX_TOKENS, "stream": stream}
    headers = {"x-api-key": platform.key, **VERSION}
    more = {"stream_options": {"include_usage": True}} if stream and "chat" in path else {}
    answer = httpx.post(
        platform.url + path,
        json={**body, **GREEDY, **more},
        headers=headers,
        timeout=HANG_S,
        trust_env=False,
    )
    assert answer.status_code == 200, answer.text
    lines = [line[5:].strip() for line in answer.text.splitlines() if line.startswith("data:")]
    events = [json.loads(line) for line in lines if line != "[DONE]"] or [answer.json()]
    text, given, made = "", 0, 0
    for event in events:
        usage = event.get("usage") or event.get("message", {}).get("usage") or {}
        if usage:
            own = usage.get("input_tokens", usage.get("prompt_tokens"))
            given = own + usage.get("cache_read_input_tokens", 0)
        made = usage.get("output_tokens", usage.get("completion_tokens", made))
        text += event.get("delta", {}).get("text", "")
        text += "".join(block["text"] for block in event.get("content", []))
        for choice in event.get("choices", []):
            text += (choice.get("delta") or choice.get("message") or {}).get("content") or ""
    return text, given, made


def _largest(sizes: dict[psutil.Process, int]) -> str:
    largest = sorted(sizes.items(), key=lambda item: -item[1])[:4]
    return ", ".join(f"{' '.join(p.cmdline()[-2:])[-30:]} {n >> 20} MiB" for p, n in largest)
