"""One stream whose client notes when each token came.

Owns the request in either dialect and the reading of its events as far as a pause needs it. Called
by `failover.py`.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter

import httpx

from infra.bench.prompts import body, prompt
from infra.ports import Entropy
from schemas.ids import find_request_id

__all__ = ["WatchedStream", "pause_over"]

_TOKEN = (b'"text_delta"', b'"content":"')
_LAST = (b'"message_stop"', b"[DONE]")
_BEGINS_WITHIN_S = 1.0
"""A pause that begins later after a kill has another cause: the dead worker's return."""


class WatchedStream:
    """A stream of exactly `tokens` tokens."""

    def __init__(self, entropy: Entropy, model: str, tokens: int, *, anthropic: bool) -> None:
        self._path = "/v1/messages" if anthropic else "/v1/chat/completions"
        self._body = body(model, prompt(entropy, "short"), tokens, stream=True)
        self._headers = {"anthropic-version": "2023-06-01"} if anthropic else {}
        self.arrivals_s: list[float] = []
        """When bytes with tokens came, in seconds of `perf_counter`."""
        self.request_id = ""
        self.failure: str | None = None

    async def follow(self, client: httpx.AsyncClient) -> None:
        """Send the request and read to its end; a broken one notes why."""
        last = b""
        try:
            async with client.stream(
                "POST", self._path, content=json.dumps(self._body), headers=self._sent
            ) as reply:
                if reply.status_code != 200:
                    self.failure = f"status {reply.status_code}"
                    return
                self.request_id = str(find_request_id(reply.headers["request-id"]))
                async for piece in reply.aiter_raw():
                    last = (last + piece)[-1_000:]
                    if any(mark in piece for mark in _TOKEN):
                        self.arrivals_s.append(perf_counter())
        except httpx.HTTPError as error:
            self.failure = repr(error)
            return
        if not any(mark in last for mark in _LAST):
            self.failure = "ended without its last event"

    @property
    def _sent(self) -> dict[str, str]:
        return {"content-type": "application/json", **self._headers}


def pause_over(arrivals_s: Sequence[float], killed_s: float) -> float:
    """Return the time from a kill to the next token, for a stream that the dead one served.

    Tokens that were on their way when it died are not the next one: that is the one which ends the
    longest pause since the kill, among those that reach over it or begin soon after it.
    """
    pauses = [
        (after_s - max(before_s, killed_s), after_s)
        for before_s, after_s in pairwise(arrivals_s)
        if after_s > killed_s and before_s < killed_s + _BEGINS_WITHIN_S
    ]
    if not pauses:
        return 0.0  # all had come before the kill
    return max(pauses)[1] - killed_s
