"""Calls of a limited org, for the tests of limits over HTTP."""

from typing import Any

import httpx

from infra.ports import TopicPartition
from schemas.operations import ControlRecord, LimitsSet
from schemas.topics import QUOTA_DEMANDS
from tests.gateway_calls import ANTHROPIC, body_of, headers_of
from tests.gateway_http import Served

COUNT = f"{ANTHROPIC}/count_tokens"


def limit(served: Served, **allowed: int) -> None:
    """Set the limits of the org that the keys belong to."""
    fact = LimitsSet(org="acme", set_ms=0, **allowed)
    served.platform.control.apply(ControlRecord(limits_set=fact))


def demands(served: Served) -> int:
    """Return how many records the demands topic has."""
    return served.platform.broker.partition(TopicPartition(QUOTA_DEMANDS, 0)).bounds().end


async def ask(
    served: Served, path: str = ANTHROPIC, gateway: int = 0, **more: Any
) -> httpx.Response:
    """Send one small request to a gateway."""
    headers = headers_of(path, served.key, **more.pop("headers", {}))
    body = body_of(path, **more)
    if path == COUNT:
        del body["max_tokens"]
    async with httpx.AsyncClient(base_url=served.urls[gateway], timeout=5, verify=False) as http:
        return await http.post(path, json=body, headers=headers)
