"""What reaches the worker of tools, results, raw prompts and items, over real HTTP."""

import asyncio

from tests.gateway_calls import (
    ANTHROPIC,
    COMPLETIONS,
    OPENAI,
    RESPONSES,
    body_of,
    client,
    headers_of,
    say,
)
from tests.gateway_http import Served, load_tokenizer, serve

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ASK = {"role": "user", "content": "Weather in Oslo?"}


def prompts(served: Served) -> list[str]:
    """Return the prompts that reached the worker, as text."""
    texts = []
    for request in served.platform.worker.seen:
        decoder = load_tokenizer().decoder()
        texts.append("".join(map(decoder.step, request.prompt_token_ids)))
    return texts


def test_a_call_and_its_result_come_back_as_the_model_wrote_them() -> None:
    """Both chat APIs show the model one and the same history of a tool's use, and what is counted
    beforehand is what is billed."""
    tool = {"name": "weather", "description": "Tell the weather.", "input_schema": SCHEMA}
    function = {"name": "weather", "description": "Tell the weather.", "parameters": SCHEMA}

    async def scenario() -> None:
        async with serve(say(CALL)) as served, client(served) as http:
            headers = headers_of(ANTHROPIC, served.key)
            body = body_of(ANTHROPIC, tools=[tool], messages=[ASK])
            first = (await http.post(ANTHROPIC, json=body, headers=headers)).json()
            (call,) = first["content"]
            assert (call["type"], call["input"]) == ("tool_use", {"city": "Oslo"})
            result = {"type": "tool_result", "tool_use_id": call["id"], "content": "rain"}
            body["messages"] = [
                ASK,
                {"role": "assistant", "content": first["content"]},
                {"role": "user", "content": [result]},
            ]
            second = (await http.post(ANTHROPIC, json=body, headers=headers)).json()
            counted = {key: body[key] for key in ("model", "messages", "tools")}
            path = f"{ANTHROPIC}/count_tokens"
            count = (await http.post(path, json=counted, headers=headers)).json()
            assert count["input_tokens"] == second["usage"]["input_tokens"]

            headers = headers_of(OPENAI, served.key)
            body = body_of(
                OPENAI, tools=[{"type": "function", "function": function}], messages=[ASK]
            )
            reply = (await http.post(OPENAI, json=body, headers=headers)).json()
            message = reply["choices"][0]["message"]
            answer = {
                "role": "tool",
                "tool_call_id": message["tool_calls"][0]["id"],
                "content": "rain",
            }
            body["messages"] = [ASK, message, answer]
            assert (await http.post(OPENAI, json=body, headers=headers)).status_code == 200

            asked, answered, asked_again, answered_again = prompts(served)
            assert (asked, answered) == (asked_again, answered_again)
            assert '"name": "weather"' in asked and asked.endswith("Oslo?\nassistant:")
            assert answered == asked + (
                f" {CALL}\nuser: <tool_response>\nrain\n</tool_response>\nassistant:"
            )

    asyncio.run(scenario())


def test_raw_prompts_and_items_reach_the_worker() -> None:
    """Completions are continued as they stand; Responses' items make the same conversation."""

    async def scenario() -> None:
        async with serve(say("a")) as served, client(served) as http:
            for path, said in (
                (COMPLETIONS, {"prompt": "Once"}),
                (COMPLETIONS, {"prompt": [72, 73]}),
                (RESPONSES, {"instructions": "Be kind.", "input": [ASK]}),
            ):
                headers = headers_of(path, served.key)
                answer = await http.post(path, json=body_of(path, **said), headers=headers)
                assert answer.status_code == 200, answer.text
            once, given, items = (
                request.prompt_token_ids for request in served.platform.worker.seen
            )
            assert given == (72, 73) and len(once) == 4
            assert len(items) == len(prompts(served)[2])
            assert prompts(served)[2] == "system: Be kind.\nuser: Weather in Oslo?\nassistant:"

    asyncio.run(scenario())
