"""Sends jobs to any server that speaks OpenAI's HTTP interface, and times the streamed answers.

Runs on an event loop. A failed request is counted with its reason; it does not end the run. One
that this client could not send is marked, because the server has no part in it.
"""

import asyncio
import errno
import time
from contextlib import aclosing
from dataclasses import dataclass, field

import httpx
import msgspec

from jitney.errors import ConfigError, SetupError
from jitney.text.printable import printable
from jitney_lab.bench.answer_stream import BadAnswer, read_answer
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job

CONNECT_S = 30.0
ANSWER_S = 600.0
"""How long a server may be silent."""
REUSE_S = 1.0
"""A connection that was idle for longer is not used again. Servers close them after some seconds,
and a request that is on its way at that moment fails."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODELS = "/v1/models"
VERSION = "/v1"
"""What the addresses of OpenAI's clients end with, and our paths begin with."""

MODELS_S = 60.0
"""For the whole list. A server that says nothing at all is given up earlier, after CONNECT_S."""

MODELS_BYTES_MAX = 2**24
"""The longest list of models that is read; long ones have a megabyte."""

REASON_CHARACTERS_MAX = 200
BODY_BYTES_MAX = 4096
"""So much of a refusal is read for a hint."""

REFUSED_FIELD = (400, 422)
"""What servers answer to a field that they do not know."""

KEY_MARK = "[key]"
FAILURES = (httpx.HTTPError, httpx.InvalidURL, ValueError, RecursionError)
"""What a request to a wrong or strange server raises; that of a decoder is a ValueError."""

NEEDS_KEY = (401, 403)
KEY_HINT = "; --api-key gives the server a key"

NO_MORE_FILES = (
    "this client may open no more files, so the request was not sent; raise `ulimit -n` or lower "
    "--max-concurrency"
)
EOS_HINT = "; --no-ignore-eos leaves the field ignore_eos out"


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
    extra_body: dict[str, object] = field(default_factory=dict)
    """More fields of each body, for servers with words of their own."""

    def client(self) -> httpx.AsyncClient:
        """A client without proxies and without a bound of connections."""
        return httpx.AsyncClient(
            headers={} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"},
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
            "temperature": 0.0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **ending,
            **self.extra_body,
        }

    @property
    def url(self) -> str:
        """Where requests go. A base may end with /v1, as the clients of OpenAI have it."""
        base = self.base_url.rstrip("/")
        if self.endpoint.startswith(f"{VERSION}/"):
            base = base.removesuffix(VERSION)
        return base + self.endpoint

    async def ask(self, client: httpx.AsyncClient, job: Job) -> RequestTimes:
        """Send one job and read its answer to the end."""
        body = self.body(job)
        times = RequestTimes(sent_at=time.monotonic(), prompt_count=job.prompt_count)
        try:
            async with aclosing(await self._send(client, body)) as response:
                if response.status_code != 200:
                    times.error = await self._refusal(response)
                else:
                    await read_answer(response, times, job.completion_count)
        except BadAnswer as error:
            times.error = _safe_text(str(error), self.api_key)
        except FAILURES as error:
            times.is_sent = not is_out_of_files(error)
            reason = f"{type(error).__name__}: {error}" if times.is_sent else NO_MORE_FILES
            times.error = _safe_text(reason, self.api_key)
        times.ended_at = time.monotonic()
        if times.error is None and not times.token_times:
            times.error = "the answer has no text"
        return times

    async def get(self) -> bytes:
        """What is at the url. Raises BadAnswer, and errors of httpx."""
        try:
            async with (
                asyncio.timeout(MODELS_S),
                self.client() as client,
                client.stream("GET", self.url, timeout=CONNECT_S) as response,
            ):
                if not response.is_success:
                    raise BadAnswer(await self._refusal(response))
                body = await _beginning(response, MODELS_BYTES_MAX + 1)
        except TimeoutError:
            raise BadAnswer(f"it was not complete after {MODELS_S:g} s") from None
        if len(body) > MODELS_BYTES_MAX:
            raise BadAnswer(f"it has above {MODELS_BYTES_MAX:,} bytes")
        return body

    async def _send(self, client: httpx.AsyncClient, body: dict[str, object]) -> httpx.Response:
        """The beginning of an answer. Raises errors of httpx.

        A server may close a connection after an answer, without a word, just as the next request
        comes; llama-server does. Such a request is sent again, as by other clients. Each of its
        connections is used once, so this ends with a new one at the latest.
        """
        opened: list[str] = []

        async def note(event: str, _: object) -> None:
            if event == "connection.connect_tcp.started":
                opened.append(event)

        while True:
            request = client.build_request("POST", self.url, json=body, extensions={"trace": note})
            try:
                return await client.send(request, stream=True)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                if opened:
                    raise

    async def _refusal(self, response: httpx.Response) -> str:
        """What the server said, with a hint where a flag of ours can help."""
        found = (await _beginning(response, BODY_BYTES_MAX)).decode("utf-8", "replace")
        status = response.status_code
        sentence = f"status {status}: {_safe_text(found, self.api_key)}"
        if self.ignores_eos and "ignore_eos" in found and status in REFUSED_FIELD:
            return sentence + EOS_HINT
        needs_key = self.api_key is None and status in NEEDS_KEY
        return sentence + (KEY_HINT if needs_key else "")


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


def served_model(base_url: str, api_key: str | None) -> str:
    """The first model that the server lists. Raises SetupError."""
    target = HttpTarget(base_url=base_url, endpoint=MODELS, model="", seed=0, api_key=api_key)
    url = target.url
    try:
        models = msgspec.json.decode(asyncio.run(target.get()), type=ModelList).data
    except FAILURES as error:
        # What we say of a refusal has no key in it, and is longer.
        reason = str(error) if isinstance(error, BadAnswer) else _safe_text(str(error), api_key)
        raise SetupError(
            f"{url} gave no list of models ({reason}); is a server running there, and is "
            "--base-url right? Or name one with --model."
        ) from None
    if not models:
        raise SetupError(f"{url} lists no model; name one with --model.")
    if not models[0].id.isprintable():
        raise SetupError(f"{url} lists a model whose name cannot be shown; give it with --model.")
    return models[0].id


def _safe_text(text: str, api_key: str | None) -> str:
    """The words of a server in one short line that can do no harm, without our key.

    Some servers repeat the key that they refuse.
    """
    line = " ".join(printable(text).split())
    return (line.replace(api_key, KEY_MARK) if api_key else line)[:REASON_CHARACTERS_MAX]


async def _beginning(response: httpx.Response, bytes_max: int) -> bytes:
    """The first bytes of a body; the rest, of any length, is not read."""
    found = bytearray()
    async for piece in response.aiter_bytes():
        found += piece
        if len(found) >= bytes_max:
            break
    return bytes(found[:bytes_max])
