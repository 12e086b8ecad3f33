"""A server over a fleet of replicas in this process, without Ray, for a browser to look at."""

import asyncio
import socket
import threading
from collections.abc import Awaitable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import httpx

from jitney.backends.fake.backend import FakeBackend
from jitney.config import Key, ServeSettings, Settings
from jitney.engine.request_factory import RequestFactory
from jitney.engine.served_engine import ServedEngine
from jitney.server.application import Application
from jitney.server.lifecycle import Lifecycle
from jitney.text.chat_template import ChatTemplate
from tests.unit.cluster.conftest import Cluster

WAIT_S = 60.0
TICK_S = 0.02
SETTINGS = Settings(backend="fake", max_num_seqs=3, max_model_len=2048, kv_tokens=4096)

Answered = TypeVar("Answered")


@dataclass(frozen=True)
class LoadedFleet:
    """What the server is made of."""

    engine: ServedEngine
    request_factory: RequestFactory
    template: ChatTemplate | None
    model_name: str = "fake"


class FleetServer:
    """The server, and its replicas, which a test can end and add."""

    def __init__(self, count: int, keys: tuple[Key, ...] = ()) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.cluster = self._done(self._opened(count))
        fleet = self.cluster.fleet
        length_max = fleet.settings.model_len_max
        factory = RequestFactory(fleet.backend, length_max, iter(range(2**62)).__next__)
        vocabulary = fleet.backend.vocabulary
        assert vocabulary.chat_template is not None
        self._template = ChatTemplate(vocabulary.chat_template, vocabulary, tokens_max=length_max)
        loaded = LoadedFleet(fleet, factory, self._template)
        serving = ServeSettings(jobs_dir=None)
        self._application = Application(loaded, serving, keys)
        self._lifecycle = Lifecycle(self._application.service, self._application.app)
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.url = f"http://{host}:{port}"
        started = threading.Event()
        self._serving = threading.Thread(
            target=self._lifecycle.run, args=(self._listener, started.set), daemon=True
        )
        self._serving.start()
        assert started.wait(WAIT_S), "the server did not start"

    def kill(self, name: str) -> None:
        """End a replica without a word."""
        self._done(self.cluster.dispatch.kill(name))

    def add(self) -> str:
        """Start a replica."""
        return self._done(self._added())

    def ask(self, prompt: str, tokens: int, **headers: str) -> str:
        """The text of a completion."""
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}
        with httpx.Client(base_url=self.url, timeout=WAIT_S, headers=headers) as client:
            response = client.post("/v1/completions", json=body)
            response.raise_for_status()
            return str(response.json()["choices"][0]["text"])

    def get(self, path: str, **headers: str) -> Any:
        """The JSON at this path."""
        with httpx.Client(base_url=self.url, timeout=WAIT_S, headers=headers) as client:
            return client.get(path).raise_for_status().json()

    def close(self) -> None:
        """End the server, then the replicas."""
        self._lifecycle.stop()
        self._lifecycle.stop()
        self._serving.join(WAIT_S)
        self._listener.close()
        self._application.close()
        self._template.close()
        self._done(self.cluster.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        assert not self._serving.is_alive(), "the server did not end"

    async def _opened(self, count: int) -> Cluster:
        cluster = Cluster(count, SETTINGS)
        for name in cluster.dispatch.replicas:
            _slow(cluster, name)
        return await cluster.__aenter__()

    async def _added(self) -> str:
        name = self.cluster.add()
        _slow(self.cluster, name)
        return name

    def _done(self, work: Awaitable[Answered]) -> Answered:
        async def waited() -> Answered:
            return await work

        return asyncio.run_coroutine_threadsafe(waited(), self._loop).result(WAIT_S)


def _slow(cluster: Cluster, name: str) -> None:
    """Ticks that take long enough to be watched."""
    backend = cluster.dispatch.replicas[name]._engine.backend
    assert isinstance(backend, FakeBackend)
    backend._settings = replace(backend._settings, tick_s=TICK_S, sleeps=True)


def fleet_server(count: int, keys: tuple[Key, ...] = ()) -> closing[FleetServer]:
    """A server over so many replicas, ended afterwards."""
    return closing(FleetServer(count, keys))
