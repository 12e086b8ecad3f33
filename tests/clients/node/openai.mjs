// OpenAI's own client for node.

import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import {
  BASE_URL, City, CITY_QUESTION, ENDLESS_TOKENS, KEY, leftEarly, LONG_QUESTION, MODEL, QUESTION, run,
} from "./checks.mjs";

const client = new OpenAI({ baseURL: BASE_URL, apiKey: KEY, maxRetries: 0, timeout: 60_000 });
const asked = (text, fields) => ({
  model: MODEL,
  messages: [{ role: "user", content: text }],
  temperature: 0,
  ...fields,
});
const tool = {
  type: "function",
  function: { name: "keep_city", description: "Keep a city.", parameters: z.toJSONSchema(City) },
};
const ask = (text, fields) => client.chat.completions.create(asked(text, fields));

async function chat() {
  const reply = await ask(QUESTION, { max_completion_tokens: 16, n: 2 });
  assert.deepEqual(reply.choices.map((each) => each.index), [0, 1]);
  assert.ok(reply.choices.every((each) => each.message.content.length > 0));
  assert.ok(["stop", "length"].includes(reply.choices[0].finish_reason));
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + reply.usage.completion_tokens);
}

async function stream() {
  const chunks = [];
  const fields = { max_tokens: 16, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await ask(QUESTION, fields)) chunks.push(chunk);
  assert.ok(chunks.filter((each) => each.choices[0]?.delta.content).length > 1);
  assert.ok(["stop", "length"].includes(chunks.at(-2).choices[0].finish_reason));
  assert.ok(chunks.at(-1).usage.completion_tokens <= 16);
}

async function tools() {
  const fields = { max_tokens: 200, tools: [tool], tool_choice: "required" };
  const { choices } = await ask(CITY_QUESTION, fields);
  assert.equal(choices[0].finish_reason, "tool_calls");
  City.parse(JSON.parse(choices[0].message.tool_calls[0].function.arguments));
  const streamed = await client.chat.completions.stream(asked(CITY_QUESTION, fields)).finalMessage();
  City.parse(JSON.parse(streamed.tool_calls[0].function.arguments));
}

async function json_schema() {
  const response_format = zodResponseFormat(City, "city");
  const reply = await client.chat.completions.parse(
    asked(CITY_QUESTION, { max_tokens: 200, response_format }),
  );
  City.parse(reply.choices[0].message.parsed);
}

async function logprobs() {
  const reply = await ask(QUESTION, { max_tokens: 6, logprobs: true, top_logprobs: 3 });
  const tokens = reply.choices[0].logprobs.content;
  assert.equal(tokens.length, reply.usage.completion_tokens);
  assert.ok(tokens.every((each) => each.top_logprobs.length === 3));
}

async function error() {
  await assert.rejects(
    ask(QUESTION, { model: "gpt-0" }),
    (told) => told instanceof OpenAI.NotFoundError && told.code === "model_not_found",
  );
  await assert.rejects(
    ask(LONG_QUESTION),
    (told) => told instanceof OpenAI.BadRequestError && told.code === "context_length_exceeded",
  );
}

async function cancel() {
  const fields = { max_tokens: ENDLESS_TOKENS, ignore_eos: true };
  await leftEarly(async () => {
    const chunks = await ask(QUESTION, { ...fields, stream: true });
    for await (const _ of chunks) chunks.controller.abort();
  });
  await leftEarly(async () => {
    const signal = AbortSignal.timeout(1000);
    const waiting = client.chat.completions.create(asked(QUESTION, fields), { signal });
    await assert.rejects(waiting, OpenAI.APIUserAbortError);
  });
}

async function responses() {
  const fields = { model: MODEL, max_output_tokens: 16, temperature: 0 };
  const first = await client.responses.create({ ...fields, input: QUESTION });
  const events = [];
  const streamed = await client.responses.create({ ...fields, input: QUESTION, stream: true });
  for await (const event of streamed) events.push(event);
  assert.deepEqual(events.map((each) => each.sequence_number), [...events.keys()]);
  const deltas = events.filter((each) => each.type === "response.output_text.delta");
  assert.equal(deltas.map((each) => each.delta).join(""), first.output_text);
  assert.equal((await client.responses.retrieve(first.id)).output_text, first.output_text);
  const next = { ...fields, input: "And why?", previous_response_id: first.id };
  assert.equal((await client.responses.create(next)).previous_response_id, first.id);
  const parsed = await client.responses.parse({
    ...fields,
    max_output_tokens: 200,
    input: CITY_QUESTION,
    text: { format: zodTextFormat(City, "city") },
  });
  City.parse(parsed.output_parsed);
  await client.responses.delete(first.id);
  await assert.rejects(client.responses.retrieve(first.id), OpenAI.NotFoundError);
}

await run("openai", { chat, stream, tools, json_schema, logprobs, error, cancel, responses });
