"""Sends jobs to any server that speaks OpenAI's HTTP interface, and times the streamed answers.

Runs on an event loop. A failed request is counted with its reason; it does not end the run. One
that this client could not send is marked, because the server has no part in it.
"""

import errno
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import httpx
import msgspec

from jitney.bench.timing import RequestTimes
from jitney.bench.workload import Job
from jitney.errors import ConfigError, SetupError

CONNECT_S = 30.0
ANSWER_S = 600.0
"""How long a server may be silent."""
REUSE_S = 1.0
"""A connection that was idle for longer is not used again. Servers close them after some seconds,
and a request that is on its way at that moment fails."""

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
DATA = b"data:"
DONE = b"[DONE]"
LINE_BYTES_MAX = 2**20
"""A longer line is not an event of a stream of text."""

REASON_CHARACTERS_MAX = 200
BODY_BYTES_MAX = 4096
"""So much of a refusal is read for a hint."""

REFUSED_FIELD = (400, 422)
"""What servers answer to a field that they do not know."""

SECRET_CHARACTERS_MIN = 6
SHOWN_KEY = "[key]"
FAILURES = (httpx.HTTPError, httpx.InvalidURL, msgspec.DecodeError, ValueError)
"""What a request to a wrong or strange server raises."""

NO_MORE_FILES = (
    "this client may open no more files, so the request was not sent; raise `ulimit -n` or lower "
    "--max-concurrency"
)
EOS_HINT = "; --no-ignore-eos leaves the field ignore_eos out"


class StreamedDelta(msgspec.Struct):
    """A piece of a chat's answer."""

    content: str | None = None


class StreamedChoice(msgspec.Struct):
    """One answer in an event: `text` of a completion, `delta` of a chat."""

    text: str | None = None
    delta: StreamedDelta | None = None


class StreamedUsage(msgspec.Struct):
    """The counts of the server."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class StreamedEvent(msgspec.Struct):
    """What we read of an event of a stream. Every field may be missing or null."""

    error: object = None
    choices: list[StreamedChoice] | None = None
    usage: StreamedUsage | None = None


class ModelEntry(msgspec.Struct):
    """One model of a server."""

    id: str


class ModelList(msgspec.Struct):
    """The models of a server."""

    data: list[ModelEntry]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTarget:
    """Where jobs go, and how they are asked for."""

    base_url: str
    endpoint: str = COMPLETIONS
    model: str
    seed: int
    api_key: str | None = field(default=None, repr=False)
    ignores_eos: bool = True
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """More headers of each request."""
    is_checked: bool = True
    """Whether the certificate of an https server must be good."""
    temperature: float = 0.0
    extra_body: dict[str, object] = field(default_factory=dict)
    """More fields of each body, for servers with words of their own."""

    def client(self) -> httpx.AsyncClient:
        """A client without proxies and without a bound of connections."""
        return httpx.AsyncClient(
            headers=_headers(self.api_key, self.headers),
            verify=self.is_checked,
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=None, keepalive_expiry=REUSE_S
            ),
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
        body = self.body(job)
        times = RequestTimes(sent_at=time.monotonic(), prompt_count=job.prompt_count)
        try:
            url = self.base_url.rstrip("/") + self.endpoint
            async with client.stream("POST", url, json=body) as response:
                if response.status_code != 200:
                    times.error = await self._refusal(response)
                else:
                    await _read(response, times)
        except FAILURES as error:
            times.is_sent = not is_out_of_files(error)
            times.error = f"{type(error).__name__}: {error}" if times.is_sent else NO_MORE_FILES
        times.ended_at = time.monotonic()
        if times.error is None and not times.token_times:
            times.error = "the answer has no text"
        if times.error is not None:
            # Some servers repeat the key that they refuse.
            for secret in self._secrets():
                times.error = times.error.replace(secret, SHOWN_KEY)
        return times

    async def _refusal(self, response: httpx.Response) -> str:
        """What the server said, with a hint where the field that it refuses is one of ours."""
        found = (await _beginning(response)).decode("utf-8", "replace")
        sentence = f"status {response.status_code}: {found[:REASON_CHARACTERS_MAX]}"
        is_ours = self.ignores_eos and "ignore_eos" in found
        return sentence + (EOS_HINT if is_ours and response.status_code in REFUSED_FIELD else "")

    def _secrets(self) -> list[str]:
        """The key, and the last word of every header that is long enough to be one."""
        words = [value.split()[-1] for value in self.headers.values() if value.split()]
        long = [word for word in words if len(word) >= SECRET_CHARACTERS_MIN]
        return [*([self.api_key] if self.api_key else []), *long]


def is_out_of_files(error: BaseException | None) -> bool:
    """Whether this process may open no more files: our limit, and no fault of a server."""
    if error is None:
        return False
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return any(map(is_out_of_files, (*inner, error.__cause__ or error.__context__)))


def check_address(base_url: str, endpoint: str) -> None:
    """Refuse an address that we cannot use or must not show. Raises ConfigError."""
    # Results and messages show the address, so a secret in it is refused before anything else.
    if any(sign in base_url for sign in "@?#"):
        raise ConfigError(
            "--base-url has one of the signs @ ? #, which stand before a host, a query or a mark; "
            "give only the address, such as http://127.0.0.1:8000, and a key with --api-key."
        )
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(
            f"--base-url is {base_url}; expected an address such as http://127.0.0.1:8000."
        )
    if not endpoint.startswith("/"):
        raise ConfigError(f"--endpoint is {endpoint}; expected a path such as {COMPLETIONS}.")


def check_key(api_key: str | None) -> None:
    """Refuse a key that cannot be sent; it is not shown. Raises ConfigError."""
    if api_key is not None and not (api_key.isascii() and api_key.isprintable() and api_key):
        raise ConfigError(
            "--api-key is empty or has a line break or another sign that cannot be sent in a "
            "header; give the key as one line of plain letters, digits and signs."
        )


def check_header(name: str, value: str) -> None:
    """Refuse a header that cannot be sent; its value is not shown. Raises ConfigError."""
    if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()) or not (
        value.isascii() and value.isprintable()
    ):
        raise ConfigError(
            "--header has a name or a value that cannot be sent; give NAME=VALUE of plain letters, "
            "digits and signs, such as x-tenant=blue."
        )


def served_model(
    base_url: str,
    api_key: str | None,
    *,
    headers: Mapping[str, str] | None = None,
    is_checked: bool = True,
) -> str:
    """The first model that the server lists. Raises SetupError."""
    url = base_url.rstrip("/") + "/v1/models"
    try:
        response = httpx.get(
            url,
            headers=_headers(api_key, headers or {}),
            timeout=CONNECT_S,
            trust_env=False,
            verify=is_checked,
        )
        response.raise_for_status()
        return msgspec.json.decode(response.content, type=ModelList).data[0].id
    except (*FAILURES, LookupError) as error:
        raise SetupError(
            f"{url} gave no model ({error}); is a server running there? Or name one with --model."
        ) from None


def _headers(api_key: str | None, more: Mapping[str, str]) -> dict[str, str]:
    key = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    return {**key, **more}


async def _read(response: httpx.Response, times: RequestTimes) -> None:
    """Note when text comes, and the counts of the server. Raises ValueError or a DecodeError."""
    decoder = msgspec.json.Decoder(StreamedEvent)
    chunk_count = 0
    async for content in _events(response):
        now = time.monotonic()
        event = decoder.decode(content)
        if event.error is not None:
            raise ValueError(str(event.error)[:REASON_CHARACTERS_MAX])
        if event.usage is not None:
            times.prompt_count = event.usage.prompt_tokens or times.prompt_count
            times.completion_count = event.usage.completion_tokens or 0
        for choice in event.choices or ():
            if choice.text or (choice.delta is not None and choice.delta.content):
                times.token_times.append(now)
                chunk_count += 1
    # A server without `usage` is believed to send one token a chunk.
    times.completion_count = times.completion_count or chunk_count


async def _events(response: httpx.Response) -> AsyncIterator[bytes]:
    left = b""
    async for piece in response.aiter_bytes():
        *lines, left = (left + piece).split(b"\n")
        if len(left) > LINE_BYTES_MAX:
            raise ValueError(f"a line of the answer has above {LINE_BYTES_MAX:,} bytes")
        for line in lines:
            if line.startswith(DATA):
                content = line[len(DATA) :].strip()
                if content != DONE:
                    # What follows the last one is read too, or the connection is not used again.
                    yield content


async def _beginning(response: httpx.Response) -> bytes:
    """The first bytes of a body; the rest, of any length, is not read."""
    found = b""
    async for piece in response.aiter_bytes():
        found += piece
        if len(found) >= BODY_BYTES_MAX:
            break
    return found[:BODY_BYTES_MAX]
