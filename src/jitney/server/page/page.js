// The main script: fetches the state while the page is visible, and passes it to the parts.

import { Chat } from "./chat.js";
import { drawBatches, drawMemory } from "./draw.js";
import { counted, seconds, setText, showQueue, showRequests, showSlots, whole } from "./lists.js";
import { drawReplicas, showMoves, showPrefixes, showReplicas } from "./replicas.js";

const BUSY_MS = 250;
const IDLE_MS = 1000;
const LOST_MS = 2000;
const REQUESTS_EVERY_MS = 1000;
const TICKS_KEPT = 600;
const OF_ONE = ["batch-card", "memory-card", "slots-card"];
const OF_SEVERAL = ["replicas-card", "prefixes-card", "moves-card", "kind-moved"];
const LEVELS = { draining: "warn", restarting: "warn" };

const byId = (id) => document.getElementById(id);

let key = sessionStorage.getItem("jitney-key") ?? "";
let ticks = [];
let lastTick = 0;
let requestsAt = 0;
let timer = null;
let isAsking = false;
let memoryPlaced = [];
let last = null;

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { ...options, headers });
  if (response.status === 401) askForKey(key !== "");
  return response;
}

async function ask() {
  timer = null;
  if (document.hidden || isAsking || byId("key-dialog").open) return;
  isAsking = true;
  let pause = LOST_MS;
  try {
    const wantsRequests = performance.now() - requestsAt > REQUESTS_EVERY_MS - 50;
    if (wantsRequests) requestsAt = performance.now();
    const response = await call(`/page/state?after=${lastTick}&requests=${wantsRequests}`);
    if (response.ok) {
      const state = await response.json();
      show(state);
      const isBusy = state.stats.active_slots > 0 || state.stats.queued_requests > 0;
      pause = isBusy ? BUSY_MS : IDLE_MS;
    } else if (response.status !== 401) {
      showHealth("bad", `the server answers with status ${response.status}`);
    } else {
      showHealth("warn", "a key is needed");
    }
  } catch {
    showHealth("bad", "the server does not answer");
  } finally {
    isAsking = false;
  }
  timer ??= setTimeout(ask, pause);
}

function wake() {
  clearTimeout(timer);
  timer = null;
  ask();
}

function show(state) {
  last = state;
  setText(byId("model"), `${state.model} on ${state.backend}`);
  showHealth(...healthWords(state));
  byId("health").dataset.busy = String(state.stats.active_slots > 0);
  showFigures(state);
  for (const id of OF_ONE) byId(id).hidden = Boolean(state.replicas);
  for (const id of OF_SEVERAL) byId(id).hidden = !state.replicas;
  if (state.replicas) showFleet(state);
  else showEngine(state);
  const waiting = state.stats.queued_requests;
  setText(byId("queue-note"), waiting ? `${waiting} wait` : "");
  if (state.requests) showRequests(byId("requests"), state.requests, details);
  if (state.latency) showLatency(state.latency);
  draw();
}

function showEngine(state) {
  setText(byId("batch-cost"), costWords(state.stats));
  takeTicks(state.ticks);
  const slots = state.slots ?? [];
  const running = slots.filter((each) => each.state !== "cached");
  showSlots(byId("slots"), running);
  const cachedCount = slots.length - running.length;
  const others = cachedCount ? `, prefixes cached in ${cachedCount} more` : "";
  setText(byId("slots-note"), `${running.length} of ${state.stats.slot_count} run${others}`);
  showQueue(byId("queue"), state.queue ?? []);
}

function showFleet({ replicas, prefixes, moves, stats, prefix_tokens: shown }) {
  showReplicas(byId("replicas"), replicas);
  const lost = stats.replicas_gone_count;
  const gone = lost ? `, ${whole(lost)} gone since the start` : "";
  setText(byId("replicas-note"), `${replicas.length} connected${gone}`);
  showPrefixes(byId("prefixes"), prefixes, replicas);
  byId("prefixes").hidden = !prefixes.length;
  setText(byId("prefixes-note"),
    `${prefixes.length ? "" : "none "}of ${shown} tokens or more`);
  showMoves(byId("moves"), moves);
  setText(byId("moves-note"), stats.moved_count ? `${whole(stats.moved_count)} in all` : "");
  const waiting = replicas.flatMap((each) =>
    (each.queue ?? []).map((one) => ({ ...one, replica: each.name })));
  showQueue(byId("queue"), waiting);
}

function healthWords({ health, stats, seen_s_ago: seen }) {
  if (health.status !== "ok") return [LEVELS[health.status] ?? "bad", health.reason ?? health.status];
  if (seen > 3) return ["warn", `last seen ${seconds(seen)} ago`];
  return ["good", stats.active_slots ? "running" : `idle, up ${seconds(stats.uptime_s)}`];
}

function showHealth(level, words) {
  byId("health").dataset.level = level;
  setText(byId("health-words"), words);
}

function showFigures({ stats, rate }) {
  figure("f-rate", whole(rate.tokens_s), "tok/s");
  setText(byId("f-prefill"), `${whole(rate.prefill_tokens_s)} prefilled/s`);
  figure("f-running", String(stats.active_slots), `of ${stats.slot_count}`);
  setText(byId("f-waiting"), `${whole(stats.queued_requests)} waiting`);
  const share = stats.kv_tokens ? (stats.kv_used - stats.kv_cached) / stats.kv_tokens : 0;
  figure("f-kv", `${Math.round(share * 100)} %`, "");
  setText(byId("f-cached"), `${whole(stats.kv_cached)} tokens cached`);
  figure("f-done", whole(stats.completed_requests), "done");
  const others = ["cancelled", "failed", "refused"].filter((name) => stats[`${name}_requests`]);
  const told = others.map((name) => `${whole(stats[`${name}_requests`])} ${name}`);
  setText(byId("f-ended"), told.join(", ") || "none failed");
  figure("f-preempted", whole(stats.preemption_count), "");
  const lost = stats.backend_failure_count;
  const losses = lost ? `, ${whole(lost)} backend losses` : "";
  setText(byId("f-evicted"), `${whole(stats.eviction_count)} evicted${losses}`);
}

// The cost of a batch of B decodes, once it is known, and how the time since the start was used.
function costWords({ fixed_cost_ms: fixed, cost_per_sequence_ms: each, ...shares }) {
  const percent = (name) => `${Math.round(shares[`${name}_share`] * 100)} % ${name}`;
  const times = `Time since the start: ${percent("prefill")}, ${percent("decode")}, ${percent("idle")}.`;
  if (fixed === null) return times;
  return `T(B) = ${fixed.toFixed(1)} ms + B × ${each.toFixed(2)} ms for a batch of B decodes. ${times}`;
}

function figure(id, value, unit) {
  const node = byId(id);
  if (node.dataset.value === `${value} ${unit}`) return;
  node.dataset.value = `${value} ${unit}`;
  const small = document.createElement("small");
  small.textContent = unit ? ` ${unit}` : "";
  node.replaceChildren(value, small);
}

function showLatency(latency) {
  for (const name of ["first_token", "gap", "whole"]) {
    const cells = byId(`l-${name}`).querySelectorAll("td");
    latency[name].forEach((value, place) => setText(cells[place], seconds(value)));
  }
}

function takeTicks(rows) {
  for (const [number, decode, prefill, batch, ms, queue, preempted] of rows) {
    if (number <= lastTick) continue;
    lastTick = number;
    ticks.push({ number, decode, prefill, batch, ms, queue, preempted });
  }
  if (ticks.length > TICKS_KEPT) ticks = ticks.slice(-TICKS_KEPT);
}

function draw() {
  if (!last || document.hidden) return;
  if (byId("watch").offsetParent === null && byId("watch").clientWidth === 0) return;
  if (last.replicas) {
    drawReplicas(byId("replicas"), last.replicas);
    return;
  }
  drawBatches(byId("batch"), ticks);
  const tick = ticks.at(-1);
  if (tick) {
    setText(byId("batch-note"),
      `Tick ${whole(tick.number)}: ${counted(tick.batch, "sequence")}, ${tick.decode} decode and ` +
      `${whole(tick.prefill)} prefill tokens in ${seconds(tick.ms / 1000)}.`);
  }
  const cached = new Set((last.slots ?? []).filter((each) => each.state === "cached").map((each) => each.slot));
  const { kv_tokens: total, kv_used: used } = last.stats;
  memoryPlaced = drawMemory(byId("memory"), last.memory ?? [], total, cached);
  const shared = (last.memory ?? []).filter((each) => each[2].length > 1);
  const saved = shared.reduce((sum, [start, end, slots]) => sum + (end - start) * (slots.length - 1), 0);
  setText(byId("memory-note"),
    `${whole(used)} of ${whole(total)} tokens` + (saved ? `; sharing saves ${whole(saved)}` : "") + ".");
}

function pointAtMemory(event) {
  const found = memoryPlaced.find(({ x, w }) => event.offsetX >= x && event.offsetX < x + w);
  const canvas = byId("memory");
  if (!found) {
    canvas.title = "free";
    return;
  }
  const names = found.slots.join(", ");
  const kind = found.isCached ? "cached" : "in use";
  const who = found.slots.length > 1 ? `shared by slots ${names}` : `slot ${names}`;
  canvas.title = `${who}: tokens ${found.start} to ${found.end}, ${kind}`;
}

async function details(id) {
  const response = await call(`/page/requests/${encodeURIComponent(id)}`);
  return response.ok ? response.json() : null;
}

function askForKey(wasWrong) {
  byId("key-button").hidden = false;
  setText(byId("key-wrong"), wasWrong ? "That key is not known here." : "");
  const dialog = byId("key-dialog");
  if (!dialog.open) dialog.showModal();
}

byId("key-dialog").addEventListener("close", () => {
  key = byId("key-input").value.trim() || key;
  byId("key-input").value = "";
  if (key) sessionStorage.setItem("jitney-key", key);
  wake();
});
byId("key-button").addEventListener("click", () => askForKey(false));

const THEMES = { auto: ["Auto", "as the system has it"], light: ["Light", "light"], dark: ["Dark", "dark"] };

function setTheme(name) {
  if (name === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("jitney-theme", name);
  const button = byId("theme-button");
  [button.textContent] = THEMES[name];
  button.setAttribute("aria-label", `Colours: ${THEMES[name][1]}`);
  button.dataset.theme = name;
  draw();
}

byId("theme-button").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(byId("theme-button").dataset.theme) + 1) % names.length]);
});

function setTab(name) {
  document.body.dataset.tab = name;
  byId("tab-watch").setAttribute("aria-pressed", String(name === "watch"));
  byId("tab-chat").setAttribute("aria-pressed", String(name === "chat"));
  draw();
}

byId("tab-watch").addEventListener("click", () => setTab("watch"));
byId("tab-chat").addEventListener("click", () => setTab("chat"));
byId("memory").addEventListener("mousemove", pointAtMemory);
document.addEventListener("visibilitychange", wake);
window.addEventListener("resize", draw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

setTheme(localStorage.getItem("jitney-theme") in THEMES ? localStorage.getItem("jitney-theme") : "auto");
setTab("watch");
new Chat(call);
wake();
