"""Sends jobs to any server that speaks OpenAI's HTTP interface, and times the streamed answers.

Runs on an event loop. A failed request is counted with its reason; it does not end the run.
"""

import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import httpx

from jitney.bench.timing import RequestTimes
from jitney.bench.workload import Job
from jitney.errors import ConfigError, SetupError

CONNECT_S = 30.0
ANSWER_S = 600.0
"""How long a server may be silent."""

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
DATA = b"data:"
DONE = b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """Where jobs go, and how they are asked for."""

    base_url: str
    endpoint: str = COMPLETIONS
    model: str
    seed: int
    api_key: str | None = field(default=None, repr=False)
    ignores_eos: bool = True
    temperature: float = 0.0
    extra_body: dict[str, object] = field(default_factory=dict)
    """More fields of each body, for servers with words of their own."""

    def client(self) -> httpx.AsyncClient:
        """A client without proxies and without a bound of connections."""
        key = self.api_key
        return httpx.AsyncClient(
            headers={} if key is None else {"authorization": f"Bearer {key}"},
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            trust_env=False,
        )

    def body(self, job: Job) -> dict[str, object]:
        """What is sent for a job."""
        text = job.text(self.seed)
        is_chat = "chat" in self.endpoint
        prompt = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
        ending = {"ignore_eos": True} if self.ignores_eos else {}
        return {
            "model": self.model,
            **prompt,
            "max_tokens": job.completion_count,
            "temperature": self.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **ending,
            **self.extra_body,
        }

    async def ask(self, client: httpx.AsyncClient, job: Job) -> RequestTimes:
        """Send one job and read its answer to the end."""
        times = RequestTimes(sent_at=time.monotonic(), prompt_count=job.prompt_count)
        try:
            url = self.base_url.rstrip("/") + self.endpoint
            async with client.stream("POST", url, json=self.body(job)) as response:
                if response.status_code != 200:
                    await response.aread()
                    times.error = f"status {response.status_code}: {response.text[:200]}"
                else:
                    await _read(response, times)
        except (httpx.HTTPError, ValueError) as error:
            times.error = f"{type(error).__name__}: {error}"
        times.ended_at = time.monotonic()
        if times.error is None and not times.token_times:
            times.error = "the answer has no text"
        return times


def served_model(base_url: str, api_key: str | None) -> str:
    """The first model that the server lists. Raises SetupError or ConfigError."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    url = base_url.rstrip("/") + "/v1/models"
    try:
        response = httpx.get(url, headers=headers, timeout=CONNECT_S, trust_env=False)
        response.raise_for_status()
        name = response.json()["data"][0]["id"]
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        raise ConfigError(
            f"--base-url is {base_url}; expected an address such as http://127.0.0.1:8000."
        ) from None
    except (httpx.HTTPError, LookupError, ValueError, TypeError) as error:
        raise SetupError(
            f"{url} gave no model ({error}); is a server running there? Or name one with --model."
        ) from None
    return str(name)


async def _read(response: httpx.Response, times: RequestTimes) -> None:
    """Note when text comes, and the counts of the server."""
    chunk_count = 0
    async for event in _events(response):
        now = time.monotonic()
        value = json.loads(event)
        if "error" in value:
            raise ValueError(str(value["error"])[:200])
        usage = value.get("usage")
        if usage:
            times.prompt_count = usage.get("prompt_tokens", times.prompt_count)
            times.completion_count = usage.get("completion_tokens", 0)
        for choice in value.get("choices", ()):
            if choice.get("text") or (choice.get("delta") or {}).get("content"):
                times.token_times.append(now)
                chunk_count += 1
    # A server without `usage` is believed to send one token a chunk.
    times.completion_count = times.completion_count or chunk_count


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    left = b""
    async for piece in response.aiter_raw():
        *lines, left = (left + piece).split(b"\n")
        for line in lines:
            if line.startswith(DATA):
                content = line[len(DATA) :].strip()
                if content == DONE:
                    return
                yield content
