// What a user of the official TypeScript SDKs sees, as one JSON object on standard output.
//
// Called by tests/integration/test_typescript_sdks.py with the gateway's address and a key. The
// server says by the last user message what to reply: "text", "tools", "fail" after some tokens.

import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const [baseURL, apiKey, model] = process.argv.slice(2);
const anthropic = new Anthropic({ baseURL, apiKey, maxRetries: 0 });
const openai = new OpenAI({ baseURL: `${baseURL}/v1`, apiKey, maxRetries: 0 });

const schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const messages = (content) => [{ role: "user", content }];
const anthropicTools = [{ name: "get_weather", description: "Weather.", input_schema: schema }];
const openaiTools = [
  { type: "function", function: { name: "get_weather", description: "Weather.", parameters: schema } },
];

async function outcome(work) {
  try {
    return { value: await work() };
  } catch (error) {
    return {
      error: error.constructor.name,
      status: error.status ?? null,
      message: String(error.message),
      requestID: error.requestID ?? null,
    };
  }
}

async function anthropicCalls() {
  const body = (content, more = {}) => ({ model, max_tokens: 200, messages: messages(content), ...more });
  const deltas = [];
  const stream = anthropic.messages.stream(body("text")).on("text", (text) => deltas.push(text));
  const streamed = await stream.finalMessage();
  const whole = await anthropic.messages.create(body("text"));
  const tools = await anthropic.messages
    .stream(body("tools", { tools: anthropicTools }))
    .finalMessage();
  const wholeTools = await anthropic.messages.create(body("tools", { tools: anthropicTools }));
  return {
    streamed,
    whole,
    deltas,
    tools,
    wholeTools,
    counted: await anthropic.messages.countTokens({ model, messages: messages("text") }),
    unknown: await outcome(() => anthropic.messages.create({ ...body("text"), model: "gpt-99" })),
    invalid: await outcome(() => anthropic.messages.create({ ...body("text"), max_tokens: -1 })),
    broken: await outcome(() => anthropic.messages.stream(body("fail")).finalMessage()),
    keyless: await outcome(() =>
      new Anthropic({ baseURL, apiKey: "wrong", maxRetries: 0 }).messages.create(body("text")),
    ),
  };
}

async function openaiCalls() {
  const body = (content, more = {}) => ({ model, messages: messages(content), ...more });
  const usage = { stream_options: { include_usage: true } };
  const deltas = [];
  const stream = openai.chat.completions
    .stream(body("text", usage))
    .on("content", (text) => deltas.push(text));
  const streamed = await stream.finalChatCompletion();
  const whole = await openai.chat.completions.create(body("text"));
  const tools = await openai.chat.completions
    .stream(body("tools", { tools: openaiTools, ...usage }))
    .finalChatCompletion();
  const wholeTools = await openai.chat.completions.create(body("tools", { tools: openaiTools }));
  const legacy = [];
  for await (const chunk of await openai.completions.create({ model, prompt: "text", stream: true })) {
    legacy.push(chunk.choices[0]?.text ?? "");
  }
  const responded = await openai.responses.stream({ model, input: "text" }).finalResponse();
  return {
    streamed,
    whole,
    deltas,
    tools,
    wholeTools,
    legacy: legacy.join(""),
    responded,
    unknown: await outcome(() => openai.chat.completions.create({ ...body("text"), model: "gpt-99" })),
    invalid: await outcome(() => openai.chat.completions.create({ ...body("text"), temperature: 9 })),
    broken: await outcome(() => openai.chat.completions.stream(body("fail")).finalChatCompletion()),
    keyless: await outcome(() =>
      new OpenAI({ baseURL: `${baseURL}/v1`, apiKey: "wrong", maxRetries: 0 }).models.list(),
    ),
  };
}

console.log(JSON.stringify({ anthropic: await anthropicCalls(), openai: await openaiCalls() }));
