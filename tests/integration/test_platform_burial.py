"""A request that kills every worker that serves it ends as an error, all others end as usual."""

import asyncio

import httpx

from schemas.ids import find_request_id
from tests.gateway_calls import body_of, headers_of
from tests.integration.platform import MODEL, Platform, eventually

PATH = "/v1/chat/completions"
POISON = "arsenic"
"""The prompt whose token the scripted engine of these platforms dies of (conftest)."""
WITHIN_S = 150.0
INNOCENTS = 6


def restarts(platform: Platform) -> int:
    """Return how often the workers were started again."""
    entries = platform.status()["processes"]
    return sum(entry["restarts"] for entry in entries if entry["name"].startswith("worker-"))


def test_a_request_that_kills_workers_is_given_up(trio: Platform) -> None:
    """After three workers it runs alone, after the fourth it is closed as failed and buried; the
    requests beside it are answered and metered, and the audit agrees."""
    before = restarts(trio)

    async def scenario() -> list[httpx.Response]:
        async with httpx.AsyncClient(
            base_url=trio.url, timeout=WITHIN_S, trust_env=False, headers=headers_of(PATH, trio.key)
        ) as client:
            prompts = (POISON, *(f"Count up to {number}." for number in range(INNOCENTS)))
            bodies = [
                body_of(PATH, model=MODEL) | {"messages": [{"role": "user", "content": prompt}]}
                for prompt in prompts
            ]
            return await asyncio.gather(*(client.post(PATH, json=body) for body in bodies))

    answer, *innocent = asyncio.run(scenario())
    assert answer.status_code == 500, answer.text
    assert "workers ended while they served the request" in answer.json()["error"]["message"]
    assert [other.status_code for other in innocent] == [200] * INNOCENTS
    request_id = find_request_id(answer.headers["request-id"])
    eventually(lambda: request_id in trio.usage_of([request_id]), 20.0, "its end is metered")
    _, output_tokens, close_reason = trio.usage_of([request_id])[request_id]
    assert (output_tokens, close_reason) == (0, "failed")
    # Its first start may not have reached the log before the engine died of it, on each worker.
    assert 4 <= restarts(trio) - before <= 6
    trio.check_audit()
