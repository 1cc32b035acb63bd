"""Bad input over real HTTP: the right status, the dialect's error shape, and a gateway that stays
as it was."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest

from schemas import limits
from tests.gateway_calls import ANTHROPIC, OPENAI, PATHS, check_shape, headers_of
from tests.integration.platform import MODEL, SOAK, Platform, eventually

TEN_MB_WITHIN_S = 1.0 if SOAK else 2.0
FLAT_BYTES = 32 * limits.MIB
ROUNDS = 20 if SOAK else 3
MESSAGES = [{"role": "user", "content": "hi"}]
LONG_WORDS = 5_000
Case = tuple[str, bytes | dict[str, object], int, str]
BAD_BODIES: list[Case] = [
    ("invalid JSON", b'{"model": ', 400, "JSON"),
    ("invalid UTF-8", b'{"model": "\xff\xfe"}', 400, "JSON"),
    ("deep JSON", b'{"model":' + b"[" * 50_000 + b"]" * 50_000 + b"}", 400, "deep"),
    ("empty body", b"", 400, "JSON"),
    ("empty messages", {"messages": []}, 400, "messages"),
    ("unknown model", {"model": "gpt-99"}, 404, MODEL),
    ("unknown field", {"frobnicate": 1}, 400, "frobnicate"),
    ("max_tokens negative", {"max_tokens": -5}, 400, "max_tokens"),
    (
        "prompt too long",
        {"messages": [{"role": "user", "content": "word " * LONG_WORDS}]},
        400,
        "prompt is too long",
    ),
]
EVERY_PATH = pytest.mark.parametrize("path", PATHS)


@EVERY_PATH
def test_bad_bodies_are_refused_in_the_dialect(platform: Platform, path: str) -> None:
    """Each bad body gets its status, the dialect's shape, and names what is wrong; none is
    metered."""
    with _client(platform) as client:
        for name, spoilt, status, named in BAD_BODIES:
            answer = _post(client, platform, path, spoilt)
            assert answer.status_code == status, (name, answer.text)
            assert named in check_shape(path, answer), (name, answer.text)


@EVERY_PATH
def test_keys_methods_and_paths(platform: Platform, path: str) -> None:
    """No key and a wrong key get 401, a wrong method 405, an unknown path 404."""
    body = _body({})
    with _client(platform) as client:
        for key in (None, "sk-ms-wrong", platform.key + "x"):
            answer = client.post(path, json=body, headers=headers_of(path, key))
            assert answer.status_code == 401
            check_shape(path, answer)
        for method in ("GET", "PUT", "DELETE", "PATCH"):
            answer = client.request(method, path, headers=headers_of(path, platform.key))
            assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
            check_shape(path, answer)
        answer = client.post(f"{path}/some/nothing", headers=headers_of(path, platform.key))
        assert answer.status_code == 404
        check_shape(path, answer)


@EVERY_PATH
def test_headers_that_make_no_sense_are_refused(platform: Platform, path: str) -> None:
    """A malformed Idempotency-Key, and a Last-Event-ID that names no reply, get a 400."""
    with _client(platform) as client:
        for name, value in (("idempotency-key", "a b"), ("last-event-id", "1-1")):
            headers = headers_of(path, platform.key, **{name: value})
            answer = client.post(path, json=_body({}), headers=headers)
            assert answer.status_code == 400
            assert name in check_shape(path, answer).lower()


def test_max_tokens_beyond_the_window_are_clipped(platform: Platform) -> None:
    """Prompt and max_tokens together too long: the reply fills the window and names the reason in
    each dialect's way, streamed or not."""
    prompt = [{"role": "user", "content": "word " * 3_900}]
    spoilt = {"messages": prompt, "max_tokens": 100_000, "ignore_eos": True}
    first = _post_once(platform, ANTHROPIC, spoilt).json()
    assert first["stop_reason"] == "model_context_window_exceeded"
    parts = ("input_tokens", "cache_read_input_tokens", "output_tokens")
    assert sum(first["usage"][part] for part in parts) == 4_096
    second = _post_once(platform, OPENAI, spoilt).json()
    assert second["choices"][0]["finish_reason"] == "length"
    assert second["usage"]["total_tokens"] == 4_096
    streamed = _post_once(platform, ANTHROPIC, {**spoilt, "stream": True}).text
    assert '"model_context_window_exceeded"' in streamed


@EVERY_PATH
def test_ten_megabytes_of_prompt_are_refused_at_once(platform: Platform, path: str) -> None:
    """10 MB of prompt get their 400 within a second, without being tokenized whole."""
    with _client(platform) as client:
        content = json.dumps(_body(_ten_megabytes())).encode()
        began_s = time.monotonic()
        answer = client.post(path, content=content, headers=headers_of(path, platform.key))
        took_s = time.monotonic() - began_s
        assert answer.status_code == 400
        assert "prompt is too long" in check_shape(path, answer)
    print(f"{path}: {len(content) >> 20} MiB refused after {took_s:.2f} s")
    assert took_s < TEN_MB_WITHIN_S


@EVERY_PATH
def test_bodies_above_the_limit_are_refused(platform: Platform, path: str) -> None:
    """More than 32 MB get 413, announced by content-length or found while reading chunks."""

    def chunks() -> Iterator[bytes]:
        for _ in range(33):
            yield b" " * limits.MIB

    with _client(platform) as client:
        for content in (b" " * (limits.HTTP_BODY_BYTES_MAX + 1), chunks()):
            answer = client.post(path, content=content, headers=headers_of(path, platform.key))
            assert answer.status_code == 413
            check_shape(path, answer)


def test_gateway_memory_stays_flat(platform: Platform) -> None:
    """Round after round of bad input leaves the gateway as large as the first round did."""
    gateway = psutil.Process(platform.process("gateway-0")["pid"])

    def play() -> None:
        with _client(platform) as client:
            for path in PATHS:
                for _, spoilt, status, _ in BAD_BODIES:
                    assert _post(client, platform, path, spoilt).status_code == status
                assert _post(client, platform, path, _ten_megabytes()).status_code == 400
                big = b" " * (limits.HTTP_BODY_BYTES_MAX + 1)
                assert _post(client, platform, path, big).status_code == 413

    play()
    before_bytes = gateway.memory_info().rss
    for _ in range(ROUNDS):
        play()
    grown_bytes = gateway.memory_info().rss - before_bytes
    print(f"gateway {before_bytes >> 20} MiB, grown by {grown_bytes / limits.MIB:.1f} MiB")
    assert grown_bytes < FLAT_BYTES


def test_revoked_keys_stop_working_within_two_seconds(platform: Platform) -> None:
    """`millstream keys revoke` takes a working key out of service within 2 s."""
    key_id, key = platform.make_key("leaver")
    assert _post_once(platform, ANTHROPIC, {}, key=key).status_code == 200
    assert platform.command("keys", "revoke", key_id).returncode == 0
    took_s = eventually(lambda: platform.models(key) == 401, 2.0, "the key is revoked")
    print(f"revoked after {took_s:.2f} s")
    listed = platform.command("keys", "list").stdout
    assert f"{key_id}  org leaver" in listed and "revoked" in listed and key not in listed


def _body(spoilt: dict[str, Any]) -> dict[str, Any]:
    return {"model": MODEL, "messages": MESSAGES, "max_tokens": 5, **spoilt}


def _ten_megabytes() -> dict[str, object]:
    return {"messages": [{"role": "user", "content": "hello there " * 900_000}]}


@contextmanager
def _client(platform: Platform) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=platform.url, timeout=30, trust_env=False) as client:
        yield client


def _post(
    client: httpx.Client, platform: Platform, path: str, spoilt: bytes | dict[str, object]
) -> httpx.Response:
    content = spoilt if isinstance(spoilt, bytes) else json.dumps(_body(spoilt)).encode()
    return client.post(path, content=content, headers=headers_of(path, platform.key))


def _post_once(
    platform: Platform, path: str, spoilt: dict[str, Any], key: str | None = None
) -> httpx.Response:
    with _client(platform) as client:
        headers = headers_of(path, key or platform.key)
        return client.post(path, json=_body(spoilt), headers=headers)
