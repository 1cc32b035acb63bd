"""What an idempotency key adds to a request: interleaved pairs, one with a key and one without.

The claim is one append and its read-back before the request is sent. Called by `failover.py`.
"""

from time import perf_counter

import httpx

from infra.bench.measure import Measure, measure
from infra.bench.platform import RunningPlatform
from infra.bench.prompts import body, prompt
from infra.bench.statistics import percentile
from infra.bench.surroundings import Surroundings

__all__ = ["keyed_added"]

_WARM_UP_PAIRS = 20


async def keyed_added(
    surroundings: Surroundings, platform: RunningPlatform, pairs: int
) -> list[Measure]:
    """Ask `pairs` times twice for one token, one request at a time, and compare."""
    took_s: dict[bool, list[float]] = {False: [], True: []}
    async with httpx.AsyncClient(
        base_url=f"http://{platform.host}:{platform.port}",
        headers=platform.headers,
        timeout=60,
        trust_env=False,
        verify=False,
    ) as client:
        for number in range(_WARM_UP_PAIRS + pairs):
            for keyed in (number % 2 > 0, number % 2 == 0):
                key = {"idempotency-key": surroundings.entropy.uuid()} if keyed else {}
                text = prompt(surroundings.entropy, "short")
                began_s = perf_counter()
                answer = await client.post(
                    "/v1/chat/completions",
                    json=body(platform.model, text, 1, stream=False),
                    headers=key,
                )
                if number >= _WARM_UP_PAIRS:
                    took_s[keyed].append(perf_counter() - began_s)
                answer.raise_for_status()
    surroundings.keep("keyed", {"plain_s": took_s[False], "keyed_s": took_s[True]})
    plain, keyed_s = (percentile(took_s[keyed], 0.5) for keyed in (False, True))
    return [
        measure("plain request p50", 1e3 * plain, "ms", note=f"{pairs} pairs"),
        measure("keyed_added_p50_ms", 1e3 * (keyed_s - plain), "ms", "<= 5"),
        measure(
            "keyed_added_p99_ms",
            1e3 * (percentile(took_s[True], 0.99) - percentile(took_s[False], 0.99)),
            "ms",
        ),
    ]
