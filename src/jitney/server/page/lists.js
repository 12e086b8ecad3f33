// Slots, queue and requests as lists. Text is only ever text, never markup. Rows are changed in
// place, so that the focus and open rows stay.

import { slotColor } from "./draw.js";

export function make(tag, className = "", text = "") {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text) node.textContent = text;
  return node;
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.floor(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
}

export function whole(value) {
  return Math.round(value).toLocaleString("en");
}

export function counted(count, noun) {
  return `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;
}

export function moveWords({ from, to, tokens, away_s: away }) {
  return `from ${from} to ${to} after ${counted(tokens, "token")}, ${seconds(away)} without a replica`;
}

// Keys must differ: with two rows of one key, the list would never remove the first.
export function keep(list, items, keyOf, build, update, emptyWords) {
  const known = new Map([...list.children].map((row) => [row.dataset.key, row]));
  const rows = items.map((item, place) => {
    const key = keyOf(item, place);
    const row = known.get(key) ?? build(item);
    row.dataset.key = key;
    known.delete(key);
    update(row, item);
    return row;
  });
  for (const row of known.values()) row.remove();
  if (!rows.length) rows.push(known.get("empty") ?? emptyRow(emptyWords));
  rows.forEach((row, place) => {
    if (list.children[place] !== row) list.insertBefore(row, list.children[place] ?? null);
  });
}

function emptyRow(words) {
  const row = make("li", "empty", words);
  row.dataset.key = "empty";
  return row;
}

export function showSlots(list, slots) {
  keep(list, slots, (each) => `${each.slot} ${each.request} ${each.index}`, buildSlot, updateSlot,
    "Nothing runs.");
}

function buildSlot() {
  const row = make("li", "slot-row");
  const chip = make("span", "chip");
  const body = make("div");
  const line = make("div", "line");
  line.append(make("span", "id"), make("span", "push"));
  const tail = make("div", "tail");
  tail.append(make("span"));
  body.append(line, tail);
  row.append(chip, body);
  return row;
}

function updateSlot(row, each) {
  const [chip, body] = row.children;
  setText(chip, String(each.slot));
  chip.title = `slot ${each.slot} of the backend; slots that do not run keep cached prefixes`;
  chip.style.background = slotColor(each.slot, 0.25);
  chip.style.borderColor = slotColor(each.slot);
  const [line, tail] = body.children;
  showName(line.children[0], each);
  const isPrefilling = each.state === "prefilling";
  const made = each.limit ? `${each.made} of ${each.limit} tokens` : counted(each.made ?? 0, "token");
  setText(line.children[1],
    isPrefilling ? `prefill ${each.tokens} of ${each.known ?? "?"}` : made);
  const isPrivate = each.text === null;
  tail.classList.toggle("private", isPrivate);
  setText(tail.firstElementChild, isPrivate ? "its text is not shown" : (each.text ?? "").trimStart());
}

// Requests of other keys have no name.
export function showName(node, { request, index }) {
  const name = request ?? "another key's request";
  node.classList.toggle("private", request === null);
  setText(node, index ? `${name} (${index})` : name);
  node.title = name;
}

export function showQueue(list, queue) {
  keep(list, queue, (each, place) => `${each.request ?? place} ${each.index}`, buildQueued,
    updateQueued, "Nobody waits.");
}

function buildQueued() {
  const row = make("li", "queue-row");
  const line = make("div", "line");
  line.append(make("span", "id"), make("span", "badge"), make("span", "push"));
  row.append(line, make("div", "note"));
  return row;
}

function updateQueued(row, each) {
  const [line, note] = row.children;
  showName(line.children[0], each);
  const badge = line.children[1];
  badge.hidden = !each.preempted && each.priority === "normal";
  setText(badge, each.preempted ? "preempted" : each.priority);
  setText(line.children[2], seconds(each.waited_s));
  const where = each.replica ? ` on ${each.replica}` : "";
  setText(note, `${whole(each.tokens)} tokens; ${each.reason}${where}`);
}

const ENDINGS = {
  stop: "done", length: "length", abort: "cancelled", deadline: "too late", error: "failed",
};

// `fetchDetails(id)` returns all details of one request.
export function showRequests(list, requests, fetchDetails) {
  const longest = Math.max(...requests.map((each) => each.total_s), 0.001);
  keep(list, requests, (each) => each.request, (each) => buildRequest(each, fetchDetails),
    (row, each) => updateRequest(row, each, longest), "No request yet.");
}

function buildRequest(each, fetchDetails) {
  const row = make("li", "request-row");
  const button = make("button");
  button.type = "button";
  button.setAttribute("aria-expanded", "false");
  const line = make("div", "line");
  line.append(make("span", "id"), make("span", "badge"), make("span", "push"));
  button.append(line, make("div", "bar"), make("div", "words"));
  const more = make("div", "more");
  more.hidden = true;
  button.addEventListener("click", async () => {
    more.hidden = !more.hidden;
    button.setAttribute("aria-expanded", String(!more.hidden));
    if (!more.hidden) showDetails(more, await fetchDetails(each.request));
  });
  row.append(button, more);
  return row;
}

function updateRequest(row, each, longest) {
  const [line, bar, words] = row.firstElementChild.children;
  setText(line.children[0], each.request);
  const badge = line.children[1];
  setText(badge, each.ending ? ENDINGS[each.ending] ?? each.ending : "live");
  badge.classList.toggle("bad", each.ending === "error" || each.ending === "deadline");
  const ago = each.ago_s - each.total_s;
  setText(line.children[2],
    each.ending ? `${seconds(each.total_s)}, ended ${seconds(ago)} ago` : `${seconds(each.total_s)} so far`);
  setText(words, each.words);
  fillBar(bar, each.phases, longest);
}

export function fillBar(bar, phases, longest) {
  while (bar.children.length > phases.length) bar.lastElementChild.remove();
  phases.forEach(([kind, start, end], place) => {
    const part = bar.children[place] ?? bar.appendChild(make("span"));
    part.className = kind;
    part.title = `${kind} ${seconds(end - start)}`;
    part.style.width = `${(((end - start) / longest) * 100).toFixed(2)}%`;
  });
}

function showDetails(more, details) {
  more.replaceChildren();
  if (!details) {
    more.append(make("p", "note", "Nothing more is known of it."));
    return;
  }
  const facts = {
    "Prompt": `${whole(details.prompt_tokens)} tokens`,
    "From the cache": `${whole(details.cached_tokens)} tokens`,
    "Generated": `${whole(details.completion_tokens)} tokens`,
    "Recomputed": `${whole(details.recomputed_tokens)} tokens`,
    "Priority": details.priority,
    "Slowest gap": details.slowest_gap ?? "–",
  };
  if (details.replica) facts["Replica"] = details.replica;
  const table = make("dl", "facts");
  for (const [name, value] of Object.entries(facts)) {
    const pair = make("div");
    pair.append(make("dt", "", name), make("dd", "", value));
    table.append(pair);
  }
  more.append(table, momentList(details));
}

function momentList(details) {
  const moments = [[0, "arrived"]];
  if (details.sent_s >= 0.005) moments.push([details.sent_s, "was read and tokenised"]);
  if (details.started_s !== null) moments.push([details.started_s, "got a slot"]);
  for (const [tick, at, start, length, took] of details.spans) {
    moments.push([at, `tick ${tick} computed tokens ${start} to ${start + length} in ${seconds(took)}`]);
  }
  for (const loss of details.losses) {
    const by = loss.by ? ` for ${loss.by}` : "";
    moments.push([loss.at_s, `lost its slot (${loss.reason})${by}`]);
  }
  for (const move of details.moves ?? []) moments.push([move.at_s, `moved ${moveWords(move)}`]);
  if (details.first_token_s !== null) moments.push([details.first_token_s, "first token"]);
  if (details.last_token_s !== null) moments.push([details.last_token_s, "last token"]);
  if (details.ending) moments.push([details.total_s, `ended: ${ENDINGS[details.ending] ?? details.ending}`]);
  moments.sort((a, b) => a[0] - b[0]);
  const list = make("ol", "moments");
  for (const [at, words] of moments) {
    const item = make("li");
    item.append(make("time", "", seconds(at)), make("span", "", words));
    list.append(item);
  }
  return list;
}
