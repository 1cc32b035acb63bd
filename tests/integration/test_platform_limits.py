"""Limits of orgs on the whole platform: real Kafka, two gateways, the stream-app, both SDKs."""

import json
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.integration.platform import MODEL, Platform, eventually

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def command(platform: Platform, *arguments: str) -> str:
    """Run a `millstream` command on the platform's data folder; return what it prints."""
    result = platform.command(*arguments)
    assert result.returncode == 0, result.stderr
    return str(result.stdout)


def ask(url: str, key: str, *, count: bool = False) -> httpx.Response:
    """Send a small request, or count its tokens."""
    body = {"model": MODEL, "messages": MESSAGES}
    return httpx.post(
        f"{url}/v1/messages{'/count_tokens' if count else ''}",
        json=body if count else body | {"max_tokens": 4},
        headers={"x-api-key": key, "anthropic-version": "2023-06-01"},
        trust_env=False,
        timeout=30,
    )


def test_limits_hold_over_gateways_and_in_both_sdks(pair: Platform) -> None:
    """Exactly the limit passes at two gateways; the SDKs see why; the month's tokens end it all."""
    _, key = pair.make_key("limited")
    command(pair, "limits", "set", "limited", "--requests-per-minute", "6")
    urls = list(pair.shown["endpoints"]["gateways"])
    header = "anthropic-ratelimit-requests-limit"

    def known() -> bool:
        # Counting has a bucket of its own.
        return all(header in ask(url, key, count=True).headers for url in urls)

    eventually(known, 5, "the limit is known")
    answers = [ask(urls[number % 2], key) for number in range(9)]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429] * 3
    assert answers[0].headers[header] == "6"
    sdk = anthropic.Anthropic(base_url=urls[0], api_key=key, max_retries=0)
    with sdk, pytest.raises(anthropic.RateLimitError) as caught:
        sdk.messages.create(model=MODEL, max_tokens=4, messages=MESSAGES)
    assert 0 < float(caught.value.response.headers["retry-after"]) <= 60
    changes = ("--requests-per-minute", "none", "--tokens-per-month", "5")
    command(pair, "limits", "set", "limited", *changes)
    other = openai.OpenAI(base_url=f"{urls[1]}/v1", api_key=key)

    def exhausted() -> bool:
        try:
            other.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
        except openai.RateLimitError as error:
            return error.code == "insufficient_quota"
        return False

    with other:
        eventually(exhausted, 20, "the totals of the month reach the gateways")
    shown = json.loads(command(pair, "limits", "show", "limited", "--json"))
    assert shown["limits"]["tokens_per_month"] == {"limit": 5, "left": 0}
    assert shown["month_tokens"] > 5
    assert ask(pair.url, pair.key).status_code == 200, "other orgs have no limits"
