"""Structured output and tools through the whole platform: 216 schemas, and calls by both SDKs."""

import asyncio
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import jsonschema
import openai
import pytest

from tests.integration.platform import MODEL, Platform
from tests.schemas.stored import StoredSchema, stored_schemas

CONCURRENT = 16
MAX_TOKENS = 48
REFUSED_MAX = 10
ENDED_LEAST = 0.8
TIMEOUT_S = 120
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "kelvin"]},
        "days": {"type": "array", "items": {"enum": [1, 2, 3]}, "maxItems": 2},
    },
    "required": ["city", "unit"],
}
CLOCK: dict[str, Any] = {
    "type": "object",
    "properties": {"zone": {"type": "string", "pattern": "^[A-Z]{3}$"}},
    "required": ["zone"],
}
SCHEMAS = {"weather": WEATHER, "clock": CLOCK}
MESSAGES: Any = [{"role": "user", "content": "What is the weather in Paris?"}]


def check_all(platform: Platform) -> None:
    """Ask for every stored schema; check each answer, and how many ended by themselves."""

    async def run() -> Counter[str]:
        room, outcomes = asyncio.Semaphore(CONCURRENT), Counter[str]()
        headers = {"authorization": f"Bearer {platform.key}"}
        async with (
            httpx.AsyncClient(
                base_url=platform.url, headers=headers, timeout=TIMEOUT_S, trust_env=False
            ) as client,
            asyncio.TaskGroup() as group,
        ):

            async def one(stored: StoredSchema) -> None:
                async with room:
                    outcomes[await outcome_of(client, stored)] += 1

            for stored in stored_schemas():
                group.create_task(one(stored))
        return outcomes

    outcomes = asyncio.run(run())
    answered = outcomes["stop"] + outcomes["length"]
    assert outcomes["refused"] <= REFUSED_MAX
    assert outcomes["stop"] >= ENDED_LEAST * answered, outcomes


async def outcome_of(client: httpx.AsyncClient, stored: StoredSchema) -> str:
    """Ask for one schema; return the finish reason, or `refused` where the keyword is named."""
    form = {"name": "answer", "schema": stored.schema, "strict": True}
    body = {
        "model": MODEL,
        "max_tokens": MAX_TOKENS,
        "temperature": 0.7,
        "seed": 7,
        "messages": [{"role": "user", "content": "Answer in JSON, briefly."}],
        "response_format": {"type": "json_schema", "json_schema": form},
    }
    answer = await client.post("/v1/chat/completions", json=body)
    if stored.refused:
        assert answer.status_code == 400, answer.text
        param = answer.json()["error"]["param"]
        keyword = param.removeprefix("response_format.json_schema.schema").rpartition(".")[2]
        assert keyword and keyword in answer.json()["error"]["message"], answer.text
        return "refused"
    assert answer.status_code == 200, f"{stored.name}: {answer.text}"
    choice = answer.json()["choices"][0]
    if choice["finish_reason"] == "stop":
        text = choice["message"]["content"]
        assert stored.problems(json.loads(text)) == [], f"{stored.name}: {text}"
    return str(choice["finish_reason"])


def check_call(name: str, arguments: object) -> None:
    """Check that a call is of a tool that there is, with arguments that follow its schema."""
    jsonschema.validate(arguments, SCHEMAS[name])


def test_the_script_follows_every_schema_that_can_be_enforced(platform: Platform) -> None:
    """Answers of the scripted engine follow their schemas too."""
    check_all(platform)


@pytest.mark.vllm
def test_the_model_follows_every_schema_that_can_be_enforced(vllm_platform: Platform) -> None:
    """Answers of the real engine follow their schemas; what cannot be enforced is named."""
    check_all(vllm_platform)


@pytest.mark.vllm
def test_anthropics_client_gets_calls_that_follow_their_schemas(vllm_platform: Platform) -> None:
    """Any and named choices give valid calls of the right tools, streamed and not."""
    tools: Any = [{"name": name, "input_schema": schema} for name, schema in SCHEMAS.items()]
    choices: tuple[Any, ...] = (
        {"type": "any", "disable_parallel_tool_use": True},
        {"type": "tool", "name": "clock"},
    )
    with anthropic.Anthropic(base_url=vllm_platform.url, api_key=vllm_platform.key) as client:

        def ask(choice: Any, streamed: bool) -> Any:
            wish: Any = {"model": MODEL, "max_tokens": 70, "messages": MESSAGES, "tools": tools}
            wish["tool_choice"] = choice
            wish["extra_headers"] = {"anthropic-version": "2023-06-01"}
            if not streamed:
                return client.messages.create(**wish)
            with client.messages.stream(**wish) as events:
                return events.get_final_message()

        with ThreadPoolExecutor() as together:
            asked = [
                (choice, together.submit(ask, choice, streamed))
                for choice in choices
                for streamed in (False, True)
            ]
        for choice, made in asked:
            (block,) = made.result().content
            assert block.type == "tool_use" and made.result().stop_reason == "tool_use"
            assert block.name == choice.get("name", block.name)
            check_call(block.name, block.input)


@pytest.mark.vllm
def test_openais_client_gets_calls_that_follow_their_schemas(vllm_platform: Platform) -> None:
    """Required, named and strict tools, and named functions, give valid calls; others none."""
    functions = [{"name": name, "parameters": schema} for name, schema in SCHEMAS.items()]
    tools: Any = [
        {"type": "function", "function": function | {"strict": True}} for function in functions
    ]
    named: Any = {"type": "function", "function": {"name": "weather"}}
    with openai.OpenAI(base_url=f"{vllm_platform.url}/v1", api_key=vllm_platform.key) as client:

        def ask(max_tokens: int, **more: Any) -> Any:
            create: Any = client.chat.completions.create
            wish = {"model": MODEL, "messages": MESSAGES, "temperature": 0}
            if "functions" not in more:
                wish["tools"] = tools
            return create(**wish, max_completion_tokens=max_tokens, **more).choices[0]

        with ThreadPoolExecutor() as together:
            single = [
                together.submit(ask, 70, tool_choice=choice, parallel_tool_calls=False)
                for choice in ("required", named)
            ]
            many = together.submit(ask, 60, tool_choice="required")
            free = together.submit(ask, 8, tool_choice="none")
            older = together.submit(ask, 70, functions=functions, function_call={"name": "weather"})
        for made in (one.result() for one in single):
            (call,) = made.message.tool_calls
            assert made.finish_reason == "tool_calls" and made.message.content is None
            check_call(call.function.name, json.loads(call.function.arguments))
        called = older.result()
        assert called.finish_reason == "function_call" and called.message.tool_calls is None
        check_call("weather", json.loads(called.message.function_call.arguments))
        several = many.result()
        whole = several.message.tool_calls[: -1 if several.finish_reason == "length" else None]
        for call in whole:
            check_call(call.function.name, json.loads(call.function.arguments))
        assert len({call.id for call in several.message.tool_calls}) >= 1
        assert free.result().message.tool_calls is None
        with pytest.raises(openai.BadRequestError) as caught:
            tools[1]["function"]["parameters"] = {"type": "object", "not": {}}
            ask(8)
        assert caught.value.param == "tools.1.function.parameters.not"
