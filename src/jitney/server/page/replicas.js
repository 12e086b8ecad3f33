// The replicas of a cluster side by side, who holds which prefix, and the last moves of requests.

import { drawMemory } from "./draw.js";
import {
  counted, keep, make, moveWords, seconds, setText, showName, showSlots, whole,
} from "./lists.js";

const OLD_S = 3;
const REASONS = { lost: "replica lost", left: "replica stopped" };

export function showReplicas(list, replicas) {
  keep(list, replicas, (each) => each.name, buildReplica, updateReplica,
    "None is connected. A replica appears here when it is ready.");
  drawReplicas(list, replicas);
}

// After the rows are in the page: before that they have no width.
export function drawReplicas(list, replicas) {
  replicas.forEach((each, place) => {
    const canvas = list.children[place]?.querySelector("canvas");
    if (canvas) drawMemory(canvas, each.memory ?? [], each.kv_tokens, cachedSlots(each));
  });
}

function cachedSlots({ slots }) {
  return new Set((slots ?? []).filter((each) => each.state === "cached").map((each) => each.slot));
}

function buildReplica(each) {
  const row = make("li", "replica");
  const line = make("div", "line");
  line.append(make("span", "id"), make("span", "badge"), make("span", "push"));
  const canvas = make("canvas");
  canvas.setAttribute("height", "16");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `The KV memory of ${each.name}`);
  row.append(line, make("p", "note"), canvas, make("p", "note"), make("ol", "rows"));
  return row;
}

function updateReplica(row, each) {
  const [line, figures, , memory, slots] = row.children;
  const [name, badge, rate] = line.children;
  setText(name, each.name);
  name.title = each.name;
  badge.hidden = each.seen_s_ago === null || each.seen_s_ago < OLD_S;
  setText(badge, `last seen ${seconds(each.seen_s_ago)} ago`);
  setText(rate, `${whole(each.tokens_s)} tok/s, ${whole(each.prefill_tokens_s)} prefilled/s`);
  const paused = each.paused_count ? `, ${each.paused_count} paused` : "";
  setText(figures,
    `${each.running_count} of ${each.slot_count} run, ${whole(each.waiting_count)} waiting${paused}`);
  const cached = each.kv_cached
    ? `, ${whole(each.kv_cached)} of them cached in ${counted(each.cached_count, "slot")}` : "";
  setText(memory, `${whole(each.kv_used)} of ${whole(each.kv_tokens)} tokens${cached}`);
  showSlots(slots, (each.slots ?? []).filter((slot) => slot.state !== "cached"));
}

// A row for each prefix, a column for each replica.
export function showPrefixes(table, prefixes, replicas) {
  const names = replicas.map((each) => each.name);
  const head = make("tr");
  head.append(heading("Prefix", "col"), ...names.map((name) => heading(name, "col")));
  const rows = prefixes.map(({ prefix, on }) => {
    const row = make("tr");
    row.append(heading(prefix, "row"), ...names.map((name) => holding(on[name])));
    return row;
  });
  const columns = make("thead");
  columns.append(head);
  const body = make("tbody");
  body.append(...rows);
  table.replaceChildren(columns, body);
}

function heading(text, scope) {
  const cell = make("th", "", text);
  cell.scope = scope;
  cell.title = text;
  return cell;
}

function holding(held) {
  if (!held) return make("td", "none", "–");
  const [slots, cached, tokens] = held;
  const cell = make("td", "held");
  cell.append(`${whole(tokens)} tokens`, make("small", "", counted(slots, "slot")));
  cell.title = `${counted(slots, "slot")} begin with it, ${cached} of them only cached; the longest holds ${whole(tokens)} tokens`;
  return cell;
}

export function showMoves(list, moves) {
  keep(list, moves, (each, place) => String(place), buildMove, updateMove, "No request was moved.");
}

function buildMove() {
  const row = make("li", "queue-row");
  const line = make("div", "line");
  line.append(make("span", "id"), make("span", "badge"), make("span", "push"));
  row.append(line, make("div", "note"));
  return row;
}

function updateMove(row, each) {
  const [line, note] = row.children;
  showName(line.children[0], each);
  setText(line.children[1], REASONS[each.reason] ?? each.reason);
  setText(line.children[2], `${seconds(each.ago_s)} ago`);
  setText(note, moveWords(each));
}
