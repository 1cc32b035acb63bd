"""Mixed traffic for the soak: both dialects, streams and bodies, churning prefixes, leavers.

Owns what the clients do; kills and measuring are `soak.py`'s.
"""

import asyncio
import json
from collections import Counter
from time import perf_counter

from infra.bench.exchange import Connection, Exchange
from infra.bench.platform import RunningPlatform
from infra.bench.prompts import prompt
from infra.ports import Entropy

__all__ = ["Traffic"]

_CONVERSATIONS = 64
_ANSWER_WITHIN_S = 60.0
_PAUSE_S = 0.2
_TRIES_MAX = 3


class Traffic:
    """Clients that ask, hang up, and try again until told to stop."""

    def __init__(self, platform: RunningPlatform, entropy: Entropy, port: int) -> None:
        self._platform = platform
        self._entropy = entropy
        self._port = port
        self._conversations = [prompt(entropy, "short") for _ in range(_CONVERSATIONS)]
        self._stopping = False
        self.outcomes: Counter[str] = Counter()
        """How requests ended: `done`, `left`, or why they failed."""

    async def run(self, clients: int) -> None:
        """Run the clients until `stop`."""
        await asyncio.gather(*(self._client() for _ in range(clients)))

    def stop(self) -> None:
        """Let requests in progress end and begin no more."""
        self._stopping = True

    async def _client(self) -> None:
        connection: Connection | None = None
        while not self._stopping:
            request, leaves = self._request(), self._chance(15)
            for _ in range(_TRIES_MAX):
                try:
                    if connection is None or not connection.is_open:
                        connection = await self._connect()
                    outcome = await self._ask(connection, request, leaves)
                except (OSError, TimeoutError) as error:
                    outcome, connection = type(error).__name__, None
                self.outcomes[outcome] += 1
                if outcome in ("done", "left") or self._stopping:
                    break
                await asyncio.sleep(_PAUSE_S)

    async def _ask(self, connection: Connection, request: bytes, leaves: bool) -> str:
        exchange, ended = Exchange(perf_counter()), asyncio.Event()
        connection.ask(request, exchange, lambda _: ended.set())
        if leaves:
            await asyncio.sleep(self._entropy.bits(8) / 1_000)
            connection.close()
        try:
            async with asyncio.timeout(_ANSWER_WITHIN_S):
                await ended.wait()
        except TimeoutError:
            connection.close()
            return "no answer in time"
        if leaves and exchange.failure:
            return "left"
        return exchange.failure or "done"

    def _request(self) -> bytes:
        anthropic, stream = self._chance(50), self._chance(60)
        text = self._conversation()
        fields: dict[str, object] = {
            "model": self._platform.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1 + self._entropy.bits(6),
            "stream": stream,
        }
        path = "/v1/messages" if anthropic else "/v1/chat/completions"
        raw = json.dumps(fields).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"content-length: {len(raw)}\r\nx-api-key: {self._platform.key}\r\n"
            f"authorization: Bearer {self._platform.key}\r\n"
            "anthropic-version: 2023-06-01\r\n\r\n"
        )
        return head.encode() + raw

    def _conversation(self) -> str:
        """Return a turn of some conversation; now and then one is replaced by a new one."""
        index = self._entropy.bits(16) % _CONVERSATIONS
        if self._chance(5):
            self._conversations[index] = prompt(self._entropy, "short")
        if self._chance(10):
            return prompt(self._entropy, "long")
        return f"{self._conversations[index]} Part {self._entropy.bits(8)}."

    def _chance(self, percent: int) -> bool:
        return self._entropy.bits(16) % 100 < percent

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self._port)
        return connection
