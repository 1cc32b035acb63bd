"""A small, fast OpenAI server for proxies to stand before: `python -m infra.bench.mock_openai`.

It has the scripted engine's behaviour at no step time: every request gets exactly `max_tokens`
tokens, streamed one event a turn of the loop, or whole. Knows one path and no errors. Prints its
port once it listens.
"""

import asyncio
import sys
from typing import cast

import msgspec
import uvloop

_PIECE = "token "
_HEAD = (
    '{"id":"chatcmpl-mock","object":"chat.completion.chunk","created":1,"model":"mock",'
    '"choices":[{"index":0,"delta":'
)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class _Request(msgspec.Struct):
    max_tokens: int = 16
    stream: bool = False


_DECODER = msgspec.json.Decoder(_Request)


def _chunk(data: str) -> bytes:
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


_OPENING = _chunk(_HEAD + '{"role":"assistant","content":""},"finish_reason":null}]}')
_TOKEN = _chunk(_HEAD + f'{{"content":"{_PIECE}"}},"finish_reason":null}}]}}')
_ENDING = _chunk(_HEAD + '{},"finish_reason":"length"}]}') + _chunk("[DONE]") + b"0\r\n\r\n"


class _Server(asyncio.Protocol):
    """One connection; requests come one after the other."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._waiting = b""

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        while True:
            head, blank, rest = self._waiting.partition(b"\r\n\r\n")
            if not blank:
                return
            lower = head.lower()
            _, found, length = lower.partition(b"content-length:")
            size = int(length.split(b"\r\n", 1)[0]) if found else 0
            if len(rest) < size:
                return
            self._waiting = rest[size:]
            self._answer(_DECODER.decode(rest[:size]) if size else _Request())

    def _answer(self, request: _Request) -> None:
        if request.stream:
            self._transport.write(_STREAM_HEAD + _OPENING)
            self._loop.call_soon(self._next_token, request.max_tokens)
        else:
            self._transport.write(_whole(request.max_tokens))

    def _next_token(self, left: int) -> None:
        if self._transport.is_closing():
            return
        if left:
            self._transport.write(_TOKEN)
            self._loop.call_soon(self._next_token, left - 1)
        else:
            self._transport.write(_ENDING)


def _whole(tokens: int) -> bytes:
    message = {"role": "assistant", "content": _PIECE * tokens}
    body = msgspec.json.encode(
        {
            "id": "chatcmpl-mock",
            "object": "chat.completion",
            "created": 1,
            "model": "mock",
            "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
            "usage": {
                "prompt_tokens": 30,
                "completion_tokens": tokens,
                "total_tokens": 30 + tokens,
            },
        }
    )
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0, backlog=1_024)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main())
