"""A real server on a real socket, over the fake backend, for tests to call."""

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import Key, ServeSettings
from jitney.core.scheduler_settings import Policy, SchedulerSettings, SchedulingPolicy
from jitney.engine.clock import Clock
from jitney.engine.engine import Engine
from jitney.engine.request_factory import RequestFactory
from jitney.engine.stats import Stats
from jitney.errors import EngineStopped
from jitney.server.application import create_app
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.answer_line import LineAnswerer
from jitney.server.batches.batches import Batches
from jitney.server.batches.stages import BatchBounds, Times
from jitney.server.lifecycle import Lifecycle
from jitney.server.limits import UNSENT_BYTES_MAX
from jitney.server.observe.monitor import Monitor
from jitney.server.service import Service
from jitney.text.chat_template import ChatTemplate

MODEL = "fake"
JSON = {"content-type": "application/json"}
WAIT_S = 100.0
"""Only a server that is wrong lets anyone wait so long; a busy machine may need some of it."""
LEAKS = re.compile(r"0x[0-9a-f]{6,}|\.py\b|(^|\s)/(?!v1/|health)\w+/|Traceback|pydantic")
"""What a message to a caller never holds: addresses, files, our insides."""


@dataclass(frozen=True, kw_only=True)
class World:
    """How the server under test is made."""

    backend: FakeSettings = field(
        default_factory=lambda: FakeSettings(slots=32, eos_period=0, kv_tokens=65_536)
    )
    sequences: int = 8
    queue: int = 64
    model_len: int = 4096
    policy: Policy | SchedulingPolicy = Policy.FIFO
    template: str | None = None
    settings: ServeSettings = field(
        default_factory=lambda: ServeSettings(served_model_name=(MODEL, "other-name"))
    )
    keys: tuple[Key, ...] = ()
    clock: Clock | None = None
    """What rates and deadlines of the HTTP side go by; None is the machine's."""
    body_limit: int = 10_000_000
    bodies_bytes_max: int | None = None
    """Bytes of all bodies together; None is what the server would take."""
    unsent_bytes_max: int = UNSENT_BYTES_MAX
    wrap: Callable[[FakeBackend], Any] = lambda backend: backend
    jobs_dir: Path | None = None
    """Where files and batches are; None is none."""
    jobs_bounds: BatchBounds = field(default_factory=BatchBounds)
    jobs_times: Times | None = None


@dataclass(frozen=True)
class Running:
    """A server that runs, and how to talk to it."""

    service: Service
    app: FastAPI
    lifecycle: Lifecycle
    host: str
    port: int
    backend: Any
    """What `World.wrap` put in front of the backend."""
    batches: Batches | None = None

    @property
    def stats(self) -> Stats:
        """Of the engine."""
        return self.service.engine.stats()

    @property
    def load(self) -> int:
        """Calls that are being served."""
        return self.service.admission.call_count

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT_S, **options)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, headers=headers)

    def chat(self, content: str = "hi", **fields: Any) -> httpx.Response:
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, **fields}
        return self.post("/v1/chat/completions", body)

    def complete(self, prompt: Any = "hello", **fields: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": 8, **fields})

    def get(self, path: str, **headers: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path, headers=headers)

    def raw(self, content: bytes, limit_s: float = WAIT_S) -> bytes:
        """Send bytes as they are; all that comes back until the other side closes."""
        with socket.create_connection((self.host, self.port), timeout=limit_s) as connection:
            connection.sendall(content)
            return read_all(connection)

    def connect(self) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=WAIT_S)

    def send(self, body: Any, *extra: str, close: bool = True) -> socket.socket:
        """A connection on which a body for /v1/completions was sent; `extra` are headers."""
        connection = self.connect()
        connection.sendall(request_bytes("/v1/completions", body, *extra, close=close))
        return connection

    @contextlib.contextmanager
    def silent(self, content: bytes) -> Iterator[socket.socket]:
        """A client that sends this, reads nothing and has little room for what comes."""
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((self.host, self.port))
            connection.sendall(content)
            yield connection

    def is_listening(self) -> bool:
        """Whether it can be connected to."""
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def is_idle(self) -> bool:
        """Whether nothing is held for anyone; memory of cached prefixes is nobody's."""
        stats = self.stats
        return (
            stats.live_requests == 0
            and stats.active_slots == 0
            and stats.kv_used == stats.kv_cached
            and not self.service.live_calls
            and self.load == 0
        )

    def check_idle(self) -> None:
        wait_until(self.is_idle, "the server holds something for nobody")
        assert self.get("/health").json() == {"status": "ok"}


def wait_until(holds: Callable[[], bool], message: str, limit_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, message
        time.sleep(0.02)


def begun_one_by_one(server: Running, count: int) -> list[socket.socket]:
    """Connections with long calls of which one runs; each was accepted before the next was sent."""
    connections: list[socket.socket] = []
    for _ in range(count):
        connections.append(server.send({"prompt": "a", "max_tokens": 4000}))
        wait_until(lambda: server.stats.live_requests == len(connections), "it was not accepted")
        wait_until(lambda: server.stats.active_slots == 1, "none has started")
    return connections


@dataclass(frozen=True)
class Bait:
    """A socket that listens, for a server that should not call it."""

    listener: socket.socket

    @property
    def port(self) -> int:
        port: int = self.listener.getsockname()[1]
        return port

    def was_called(self) -> bool:
        """Whether anybody connected since the last time; the kernel answers for us."""
        try:
            connection, _ = self.listener.accept()
        except BlockingIOError:
            return False
        connection.close()
        return True


@contextlib.contextmanager
def bait() -> Iterator[Bait]:
    """An address of this machine to put into what is sent; it is seen to notice callers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        made = Bait(listener)
        yield made
        socket.create_connection(("127.0.0.1", made.port), WAIT_S).close()
        assert made.was_called(), "it would not have noticed"


def read_all(connection: socket.socket) -> bytes:
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def request_bytes(path: str, body: Any, *extra: str, close: bool = True) -> bytes:
    """A whole POST as it goes over the wire."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {len(content)}",
        *(["Connection: close"] if close else []),
        *extra,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def events(text: str) -> list[Any]:
    """The JSON of every event of a stream; the string [DONE] stays."""
    found: list[Any] = []
    for block in text.split("\n\n"):
        if block.startswith("data: "):
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def lines_of(response: httpx.Response) -> Iterator[str]:
    """Lines of a stream. Only a line feed ends one; httpx's own `iter_lines` also splits at U+0085
    and U+2028, which JSON holds as they are."""
    rest = b""
    for part in response.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode()
    if rest:
        yield rest.decode()


def check_error(response: httpx.Response, status: int, param: str | None = None) -> Any:
    """That it is an error in OpenAI's shape; its inner object."""
    assert response.status_code == status, (response.status_code, response.text[:500])
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}, error
    assert error["message"], error
    assert not LEAKS.search(error["message"]), error
    assert response.headers["x-request-id"]
    if param is not None:
        assert error["param"] == param, error
    return error


def _batches_of(world: World, service: Service) -> Batches | None:
    if world.jobs_dir is None:
        return None
    batches = Batches(
        *(world.jobs_dir, LineAnswerer(service)),
        bounds=world.jobs_bounds,
        times=world.jobs_times,
        allowances=Allowances(service.keys.known, service.clock),
    )
    batches.open_if_there()
    return batches


@contextlib.contextmanager
def running(world: World) -> Iterator[Running]:
    """A server in a thread of this process; drained and ended afterwards."""
    backend = FakeBackend(world.backend)
    limits = SchedulerSettings(
        model_len_max=min(world.model_len, world.backend.kv_tokens),
        max_num_seqs=world.sequences,
        max_num_queued_reqs=world.queue,
        policy=world.policy,
    )
    wrapped = world.wrap(backend)
    engine = Engine(wrapped, limits)
    source = world.template or backend.vocabulary.chat_template
    assert source is not None
    template = ChatTemplate(source, backend.vocabulary, tokens_max=limits.model_len_max)
    service = Service(
        engine,
        RequestFactory(wrapped, limits.model_len_max, iter(range(2**62)).__next__),
        template,
        replace(world.settings, body_limit=world.body_limit),
        world.keys,
        world.clock,
    )
    if world.bodies_bytes_max is not None:
        service.admission.bodies_bytes_max = world.bodies_bytes_max
    monitor = Monitor(engine, service.model_name)
    engine.start()
    batches = _batches_of(world, service)
    app = create_app(service, monitor, batches)
    lifecycle = Lifecycle(service, app, world.unsent_bytes_max)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    host, port = listener.getsockname()
    started = threading.Event()

    def serve() -> None:
        with contextlib.suppress(EngineStopped):  # a test that breaks the engine says so itself
            lifecycle.run(listener, on_started)

    def on_started() -> None:
        if batches is not None:
            batches.start()
        started.set()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert started.wait(WAIT_S), "the server did not start"
    try:
        yield Running(service, app, lifecycle, host, port, wrapped, batches)
    finally:
        lifecycle.stop()
        lifecycle.stop()
        thread.join(WAIT_S)
        listener.close()
        template.close()
        if batches is not None:
            batches.close()
        assert not thread.is_alive(), "the server did not end"
