// The Vercel AI SDK with its provider for compatible servers, which checks every chunk.

import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, Output, streamText, tool } from "ai";
import {
  BASE_URL, City, CITY_QUESTION, ENDLESS_TOKENS, KEY, leftEarly, LONG_QUESTION, MODEL, QUESTION, run,
} from "./checks.mjs";

const provider = createOpenAICompatible({
  name: "jitney",
  baseURL: BASE_URL,
  apiKey: KEY,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const common = { model: provider(MODEL), temperature: 0, maxRetries: 0 };
const calling = {
  ...common,
  prompt: CITY_QUESTION,
  maxOutputTokens: 200,
  tools: { keep_city: tool({ description: "Keep a city.", inputSchema: City }) },
  toolChoice: "required",
  providerOptions: { jitney: { parallel_tool_calls: false } },
};

async function chat() {
  const reply = await generateText({ ...common, prompt: QUESTION, maxOutputTokens: 16 });
  assert.ok(reply.text.length > 0);
  assert.ok(["stop", "length"].includes(reply.finishReason));
  assert.equal(reply.usage.totalTokens, reply.usage.inputTokens + reply.usage.outputTokens);
}

async function stream() {
  const reply = streamText({ ...common, prompt: QUESTION, maxOutputTokens: 16 });
  const texts = [];
  for await (const text of reply.textStream) texts.push(text);
  assert.ok(texts.length > 1);
  assert.ok(["stop", "length"].includes(await reply.finishReason));
  assert.ok((await reply.usage).outputTokens <= 16);
}

async function tools() {
  const reply = await generateText(calling);
  assert.equal(reply.finishReason, "tool-calls");
  City.parse(reply.toolCalls[0].input);
  const streamed = streamText(calling);
  await streamed.consumeStream();
  assert.equal(await streamed.finishReason, "tool-calls");
  City.parse((await streamed.toolCalls)[0].input);
}

async function json_schema() {
  const asked = { ...common, prompt: CITY_QUESTION, maxOutputTokens: 200 };
  const output = Output.object({ schema: City });
  City.parse((await generateText({ ...asked, output })).output);
  City.parse(await streamText({ ...asked, output }).output);
}

async function logprobs() {
  const reply = await generateText({
    ...common,
    prompt: QUESTION,
    maxOutputTokens: 6,
    providerOptions: { jitney: { logprobs: true, top_logprobs: 3 } },
  });
  const tokens = reply.response.body.choices[0].logprobs.content;
  assert.equal(tokens.length, reply.usage.outputTokens);
  assert.ok(tokens.every((each) => each.top_logprobs.length === 3));
}

async function error() {
  const refused = (status, code) => (told) =>
    APICallError.isInstance(told) && told.statusCode === status && told.responseBody.includes(code);
  await assert.rejects(
    generateText({ ...common, model: provider("gpt-0"), prompt: QUESTION }),
    refused(404, "model_not_found"),
  );
  await assert.rejects(
    generateText({ ...common, prompt: LONG_QUESTION }),
    refused(400, "context_length_exceeded"),
  );
}

async function cancel() {
  await leftEarly(async () => {
    const leaving = new AbortController();
    const reply = streamText({
      ...common,
      prompt: QUESTION,
      maxOutputTokens: ENDLESS_TOKENS,
      providerOptions: { jitney: { ignore_eos: true } },
      abortSignal: leaving.signal,
    });
    for await (const _ of reply.textStream) leaving.abort();
  });
}

await run("ai", { chat, stream, tools, json_schema, logprobs, error, cancel });
