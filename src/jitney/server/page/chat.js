// The playground: a conversation over /v1/chat/completions, streamed, with its own explanation.

import { make, seconds } from "./lists.js";

const byId = (id) => document.getElementById(id);

export class Chat {
  // `call(path, options)` is fetch with the key.
  constructor(call) {
    this.call = call;
    // Each conversation has a new list, so an answer can see whether its own was cleared.
    this.messages = [];
    this.running = null;
    this.empty = byId("talk-empty");
    byId("chat-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    byId("chat-input").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      }
    });
    byId("chat-stop").addEventListener("click", () => this.running?.abort());
    byId("chat-clear").addEventListener("click", () => this.clear());
  }

  clear() {
    this.running?.abort();
    this.setRunning(null);
    this.messages = [];
    byId("talk").replaceChildren(this.empty);
    byId("chat-figures").textContent = "";
  }

  async send() {
    const input = byId("chat-input");
    const text = input.value.trim();
    if (!text || this.running) return;
    input.value = "";
    this.empty.remove();
    this.messages.push({ role: "user", content: text });
    this.say("user", text);
    const bubble = this.say("assistant", "");
    const controller = new AbortController();
    this.setRunning(controller);
    const run = { messages: this.messages, id: null, text: "", started: performance.now(),
      first: null, last: null, usage: null, wrong: null };
    try {
      await this.stream(run, bubble, controller.signal);
    } catch (error) {
      if (error.name !== "AbortError") run.wrong = "The connection broke before the answer was done.";
    }
    if (this.isCleared(run)) return;
    this.setRunning(null);
    this.finish(run, bubble);
  }

  isCleared(run) {
    return run.messages !== this.messages;
  }

  async stream(run, bubble, signal) {
    const response = await this.call("/v1/chat/completions", {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify(this.body()),
      signal,
    });
    if (!response.ok) {
      const refused = await response.json().catch(() => null);
      run.wrong = refused?.error?.message ?? `The server answered with status ${response.status}.`;
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done || this.isCleared(run)) return;
      const events = (rest + value).split(/\r?\n\r?\n/);
      rest = events.pop();
      for (const event of events) this.take(event, run, bubble);
    }
  }

  take(event, run, bubble) {
    const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
    const payload = lines.map((line) => line.slice(5).trimStart()).join("\n");
    if (!payload || payload === "[DONE]") return;
    const chunk = JSON.parse(payload);
    if (chunk.error) run.wrong = chunk.error.message;
    // The recorder has the same name, unless the caller chose one.
    if (chunk.id) run.id = chunk.id;
    if (chunk.usage) run.usage = chunk.usage;
    const text = chunk.choices?.[0]?.delta?.content;
    if (!text) return;
    run.last = performance.now();
    run.first ??= run.last;
    run.text += text;
    const talk = byId("talk");
    const isAtEnd = talk.scrollHeight - talk.scrollTop - talk.clientHeight < 40;
    bubble.append(text);
    if (isAtEnd) talk.scrollTop = talk.scrollHeight;
    this.figures(run);
  }

  async finish(run, bubble) {
    if (run.text) this.messages.push({ role: "assistant", content: run.text });
    else this.takeBack(bubble);
    if (run.wrong) this.say("wrong", run.wrong);
    this.figures(run);
    if (run.id === null) return;
    // The recorder gets the end a moment before or after the stream.
    for (let attempt = 0; attempt < 4; attempt += 1) {
      const response = await this.call(`/page/requests/${encodeURIComponent(run.id)}`).catch(() => null);
      const told = response?.ok ? await response.json() : null;
      if (this.isCleared(run)) return;
      if (told?.ending) {
        this.say("why note", told.words);
        return;
      }
      await new Promise((resolve) => setTimeout(resolve, 250));
    }
  }

  // There was no answer: take the question back, so that it can be asked again.
  takeBack(bubble) {
    bubble.remove();
    const { content } = this.messages.pop();
    const input = byId("chat-input");
    if (!input.value) input.value = content;
  }

  figures(run) {
    const parts = [];
    if (run.first !== null) parts.push(`first token after ${seconds((run.first - run.started) / 1000)}`);
    if (run.usage) {
      const spent = (run.last - run.first) / 1000;
      parts.push(`${run.usage.completion_tokens} tokens`);
      if (spent > 0) parts.push(`${((run.usage.completion_tokens - 1) / spent).toFixed(1)} tok/s`);
    }
    byId("chat-figures").textContent = parts.join(", ");
  }

  body() {
    const number = (name) => {
      const value = byId(`p-${name}`).value.trim();
      return value === "" ? undefined : Number(value);
    };
    const stop = byId("p-stop").value.split("\n").filter((line) => line !== "");
    const system = byId("p-system").value.trim();
    const messages = system ? [{ role: "system", content: system }, ...this.messages] : this.messages;
    return {
      messages,
      stream: true,
      stream_options: { include_usage: true },
      temperature: number("temperature"),
      top_p: number("top_p"),
      max_tokens: number("max_tokens"),
      seed: number("seed"),
      stop: stop.length ? stop : undefined,
    };
  }

  say(kind, text) {
    const bubble = make("div", kind.startsWith("why") ? kind : `said ${kind}`);
    bubble.textContent = text;
    const talk = byId("talk");
    talk.append(bubble);
    talk.scrollTop = talk.scrollHeight;
    return bubble;
  }

  setRunning(controller) {
    this.running = controller;
    byId("chat-stop").disabled = !controller;
    byId("chat-send").disabled = Boolean(controller);
  }
}
