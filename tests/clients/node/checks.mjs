// What the scripts of all node clients share: where the server is, what is asked of it, how
// results are told, and a lock on the network. The twin of python/checks.py.

import assert from "node:assert/strict";
import { appendFileSync, readFileSync } from "node:fs";
import net from "node:net";
import { setTimeout as sleep } from "node:timers/promises";
import { z } from "zod";

const { JITNEY_URL: URL, JITNEY_REPORT: REPORT } = process.env;
export const KEY = process.env.JITNEY_KEY;
export const MODEL = process.env.JITNEY_MODEL;
export const BASE_URL = `${URL}/v1`;
const CHECKS = [
  "chat", "stream", "tools", "json_schema", "logprobs", "error", "cancel", "responses",
];

export const QUESTION = "Why is the sky blue?";
export const CITY_QUESTION = "Tell me of a city.";
export const LONG_QUESTION = "word ".repeat(Number(process.env.JITNEY_MODEL_LEN) + 100);
export const ENDLESS_TOKENS = 1500;
const LEAVING_MS_MAX = 10_000;

export const City = z.strictObject({
  name: z.string().max(20),
  size: z.enum(["small", "large"]),
  rivers: z.number().int().min(0).max(9),
});

// Do each check by the function of its name, and tell what became of it.
export async function run(packageName, functions) {
  const manifest = new globalThis.URL(`node_modules/${packageName}/package.json`, import.meta.url);
  tell({ version: JSON.parse(readFileSync(manifest, "utf8")).version });
  for (const check of CHECKS) {
    if (!(check in functions)) {
      tell({ check, result: "-" });
      continue;
    }
    try {
      await functions[check]();
      assert.deepEqual(strays, []);
      tell({ check, result: "ok" });
    } catch (error) {
      tell({ check, result: "FAIL", why: String(error?.stack ?? error).slice(0, 3000) });
    }
  }
  // Connections that are kept alive would keep the process, too.
  process.exit(0);
}

// The function leaves a request that would go on for long: the server must notice, and stop.
export async function leftEarly(leave) {
  const before = await cancelledCount();
  await leave();
  const limit = Date.now() + LEAVING_MS_MAX;
  while ((await cancelledCount()) === before || (await load()) > 0) {
    assert.ok(Date.now() < limit, "the server went on for nobody");
    await sleep(50);
  }
}

async function cancelledCount() {
  const found = /^jitney:requests_ended_total\{reason="abort"\} (\S+)$/m.exec(await get("/metrics"));
  assert.ok(found, "/metrics does not say how many requests were cancelled");
  return Number(found[1]);
}

async function load() {
  return JSON.parse(await get("/load")).server_load;
}

async function get(path) {
  const answer = await fetch(URL + path, { headers: { authorization: `Bearer ${KEY}` } });
  assert.equal(answer.status, 200);
  return answer.text();
}

// To a file, since clients write what they like to standard output.
function tell(fields) {
  appendFileSync(REPORT, JSON.stringify(fields) + "\n");
}

// Other machines that the client tried to reach, though it may have kept that to itself.
const strays = [];
const connect = net.Socket.prototype.connect;
net.Socket.prototype.connect = function (...given) {
  const options = Array.isArray(given[0]) ? given[0][0] : given[0];
  const host = options?.host ?? options?.hostname;
  if (!["127.0.0.1", "::1", "localhost"].includes(host)) {
    strays.push(host);
    throw new Error(`connection to ${host}: clients may only call this machine`);
  }
  return connect.apply(this, given);
};
