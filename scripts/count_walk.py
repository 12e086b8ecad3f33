"""`python -m scripts.count_walk`: files and Python calls on the way of a token and of a request.

A server with the fake backend runs in this process, and every thread of it is profiled. What a
token needs is the difference between a long stream and a short one: a file is on its way if it is
called for at least half of the tokens. A forward pass takes a moment, so that each token is sent by
itself. What only one of two short requests calls is no part of the way: a timer called it. The
numbers differ a little from run to run: threads wake each other in another order.
"""

import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from types import FrameType

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import ServeSettings, Settings
from jitney.engine.engine import Engine
from jitney.engine.request_factory import RequestFactory, seed_source
from jitney.loading.compose import Assembly, make_template, scheduler_settings
from jitney.server.application import Application
from jitney.server.lifecycle import Lifecycle
from jitney.text.chat_template import Renderer

SOURCE = Path(__file__).resolve().parent.parent / "src" / "jitney"
SHORT_TOKENS, LONG_TOKENS = 8, 72
PASS_S = 0.005
WAIT_S = 60.0

Calls = Counter[str]
"""Python calls by file, relative to `src/jitney`."""


class Profile:
    """Counts calls of all threads that start while it is installed."""

    def __init__(self) -> None:
        self._calls = Counter[str]()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Profile every thread that starts in this block."""
        threading.setprofile(self._count)
        try:
            yield
        finally:
            threading.setprofile(None)

    def take(self) -> Calls:
        """The calls since the last time."""
        taken, self._calls = self._calls, Counter[str]()
        root = f"{SOURCE}/"
        return Counter(
            {
                name.removeprefix(root): count
                for name, count in taken.items()
                if name.startswith(root)
            }
        )

    def _count(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            self._calls[frame.f_code.co_filename] += 1


@contextmanager
def serving() -> Iterator[HTTPConnection]:
    """A server over the fake backend in this process, and a connection to it."""
    assembly = _assemble()
    application = Application(assembly, replace(ServeSettings(), jobs_dir=None), ())
    lifecycle = Lifecycle(application.service, application.app)
    started = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=lifecycle.run, args=(listener, started.set), daemon=True)
        thread.start()
        assert started.wait(WAIT_S), "the server did not start"
        host, port = listener.getsockname()
        connection = HTTPConnection(host, port, timeout=WAIT_S)
        try:
            yield connection
        finally:
            connection.close()
            lifecycle.stop()
            lifecycle.stop()
            thread.join(WAIT_S)
            application.close()
            assembly.close(0.0)


def _assemble() -> Assembly:
    settings = replace(Settings(), backend="fake")
    backend = FakeBackend(FakeSettings(tick_s=PASS_S, sleeps=True, eos_period=0))
    limits = scheduler_settings(settings, backend.traits)
    template = make_template(backend.vocabulary, limits.model_len_max, Renderer())
    engine = Engine(backend, limits)
    engine.start()
    factory = RequestFactory(backend, limits.model_len_max, seed_source(0))
    return Assembly(settings, engine, factory, template, "fake")


def stream(connection: HTTPConnection, token_count: int) -> None:
    """Read a streamed chat of so many tokens."""
    body = {
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": token_count,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"content-type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    content = response.read()
    assert response.status == 200, content
    assert content.endswith(b"data: [DONE]\n\n"), content[-200:]


def count_walks() -> tuple[Calls, Calls]:
    """Calls by file of one more token, of those on its way; and of a whole short request."""
    profile = Profile()
    with profile.installed(), serving() as connection:
        # The first request also imports and compiles.
        stream(connection, SHORT_TOKENS)
        profile.take()
        stream(connection, SHORT_TOKENS)
        short = profile.take()
        stream(connection, SHORT_TOKENS)
        short &= profile.take()
        stream(connection, LONG_TOKENS)
        long = profile.take()
    more = LONG_TOKENS - SHORT_TOKENS
    extra = {name: (count - short[name]) / more for name, count in long.items()}
    return Counter({name: round(each) for name, each in extra.items() if each >= 0.5}), short


def table(calls: Calls) -> str:
    """Files and calls by room, and in all."""
    rooms = Counter[str]()
    files = Counter[str]()
    for name, count in calls.items():
        room = name.partition("/")[0] if "/" in name else "."
        rooms[room] += count
        files[room] += 1
    rows = [(room, files[room], count) for room, count in rooms.most_common()]
    rows.append(("all", files.total(), rooms.total()))
    return "\n".join(
        f"    {room:<12} {count:4} files {total:6,} calls" for room, count, total in rows
    )


def main() -> None:
    """Print both walks. With `--files`, also the files."""
    for about, calls in zip(("one decoded token", "a chat request"), count_walks(), strict=True):
        print(f"{about}:\n{table(calls)}")
        if "--files" in sys.argv:
            for name, count in sorted(calls.items()):
                print(f"        {count:4} {name}")


if __name__ == "__main__":
    main()
