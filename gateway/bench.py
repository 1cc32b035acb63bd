"""The cost of reading a request body, for `millstream bench parse`: `python -m gateway.bench`.

Owns nothing but the loop: the functions that a handler calls between a body's bytes and the
canonical request, in this process, with nothing around them. One line of figures out.
"""

import sys
import time
from collections.abc import Callable, Mapping

import msgspec

from gateway.bodies import decode_json
from infra.bench.plan import ParseAnswer
from schemas.dialects import anthropic, openai

__all__ = ["main"]

_ROUNDS = 9
_BODIES_PER_ROUND = 2_000
_TURN = "What would a careful engineer look at first, and why does the order matter to others? "
_QUESTIONS = 6
_TOOL = {
    "name": "get_weather",
    "description": "Tell the weather of a city.",
    "schema": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Name of the city."},
            "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
}


def main() -> int:
    """Measure, print one line of JSON, return the exit status."""
    bodies: Mapping[str, tuple[bytes, Callable[[object], object]]] = {
        "chat": (_encoded(_chat_body()), lambda body: openai.parse(body, "v1")),
        "messages": (
            _encoded(_messages_body()),
            lambda body: anthropic.parse(body, "2023-06-01"),
        ),
    }
    answer = ParseAnswer(
        body_bytes={name: len(raw) for name, (raw, _) in bodies.items()},
        us_per_body={name: _measured(raw, parse) for name, (raw, parse) in bodies.items()},
    )
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    return 0


def _measured(raw: bytes, parse: Callable[[object], object]) -> tuple[float, ...]:
    """Return the CPU time of one body in each round, in microseconds."""
    figures = []
    for _ in range(_ROUNDS):
        began_s = time.process_time()
        for _ in range(_BODIES_PER_ROUND):
            parse(decode_json(raw))
        figures.append(1e6 * (time.process_time() - began_s) / _BODIES_PER_ROUND)
    return tuple(figures)


def _chat_body() -> dict[str, object]:
    function = {
        "name": _TOOL["name"],
        "description": _TOOL["description"],
        "parameters": _TOOL["schema"],
    }
    return {
        "model": "smollm2-135m-instruct",
        "messages": [{"role": "system", "content": _TURN * 5}, *_turns()],
        "max_tokens": 256,
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 7,
        "stop": ["END"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": function}],
        "tool_choice": "auto",
        "user": "somebody",
    }


def _messages_body() -> dict[str, object]:
    return {
        "model": "smollm2-135m-instruct",
        "system": [{"type": "text", "text": _TURN * 5}],
        "messages": [
            {"role": turn["role"], "content": [{"type": "text", "text": turn["content"]}]}
            for turn in _turns()
        ],
        "max_tokens": 256,
        "temperature": 0.7,
        "stop_sequences": ["END"],
        "stream": True,
        "tools": [
            {
                "name": _TOOL["name"],
                "description": _TOOL["description"],
                "input_schema": _TOOL["schema"],
            }
        ],
        "metadata": {"user_id": "somebody"},
    }


def _turns() -> list[dict[str, str]]:
    turns = []
    for _ in range(_QUESTIONS):
        turns.append({"role": "user", "content": _TURN})
        turns.append({"role": "assistant", "content": _TURN + _TURN})
    return [*turns, {"role": "user", "content": _TURN}]


def _encoded(body: dict[str, object]) -> bytes:
    return msgspec.json.encode(body)


if __name__ == "__main__":
    sys.exit(main())
