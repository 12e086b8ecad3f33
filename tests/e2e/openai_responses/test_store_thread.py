"""What reading a stored response costs others: the store's thread reads rows, and a worker thread
makes items, events and JSON of them. Neither it nor the event loop does."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.e2e.batches.batch_client import SLOW
from tests.e2e.openai_responses.response_client import PATH, ask, replayed, text_of
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import WAIT_S, Running, World, wait_until

SLOW_WORK = {"output_of", "atoms_of", "_delta", "decoder", "encoder"}
"""What makes items of an answer, and what reads and writes JSON."""


@dataclass
class Called:
    """Functions, and modules of some, that were called."""

    on_loop: set[str] = field(default_factory=set)
    on_store: set[str] = field(default_factory=set)


@contextmanager
def calls_seen(server: Running) -> Iterator[Called]:
    """What the event loop and the store's thread call."""
    assert server.batches is not None
    store = server.batches.thread
    called = Called()

    def note(names: set[str], frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            names.update((Path(code.co_filename).stem, code.co_name))

    async def set_both(on_loop: Any, on_store: Any, is_set: threading.Event) -> None:
        sys.setprofile(on_loop)
        await store.call(lambda _: sys.setprofile(on_store))
        is_set.set()

    def set_hooks(on_loop: Any = None, on_store: Any = None) -> None:
        is_set = threading.Event()
        setting = set_both(on_loop, on_store, is_set)
        server.service.loop_calls.call(lambda: tasks.append(asyncio.ensure_future(setting)))
        assert is_set.wait(WAIT_S)

    tasks: list[asyncio.Future[None]] = []
    # The first stream makes the way to the event loop, and opens the store.
    ask(server, stream=True)
    set_hooks(partial(note, called.on_loop), partial(note, called.on_store))
    try:
        yield called
    finally:
        set_hooks()


def test_a_stored_response_is_read_without_the_store_or_the_loop(server: Running) -> None:
    """Guards all other streams: whoever polls a long answer takes no time of the store's thread,
    which writes everybody's pieces, and none of the event loop."""
    told = ask(server, max_output_tokens=200).json()
    with calls_seen(server) as called:
        assert server.get(f"{PATH}/{told['id']}").json() == told
        assert server.get(f"{PATH}/{told['id']}/input_items").status_code == 200
        assert replayed(server, told["id"])[-1]["response"] == told
    assert (called.on_loop | called.on_store) & SLOW_WORK == set()
    assert "response_table" in called.on_store, "nothing was noted"
    assert "response_routes" in called.on_loop, "nothing was noted"


def test_a_conversation_is_read_without_the_store_or_the_loop(server: Running) -> None:
    """The same for those who go on: each turn reads all before it."""
    first = ask(server, "one").json()
    second = ask(server, "two", previous_response_id=first["id"]).json()
    with calls_seen(server) as called:
        third = ask(server, "three", previous_response_id=second["id"], store=False)
    assert third.status_code == 200
    # The new answer itself has been written by the event loop.
    assert "stored_rows" not in called.on_loop
    assert called.on_store & SLOW_WORK == set()


def test_a_cancelled_response_is_made_once_and_elsewhere(start: Start, tmp_path: Path) -> None:
    """The same for a cancel."""
    server = start(World(jobs_dir=tmp_path / "jobs", backend=SLOW))
    asked: dict[str, Any] = {"max_output_tokens": 3000, "ignore_eos": True}
    path = f"{PATH}/{ask(server, background=True, **asked).json()['id']}"
    wait_until(lambda: len(text_of(server.get(path).json())) > 20, "it made nothing")
    server.post(f"{path}/cancel", {})
    server.check_idle()
    with calls_seen(server) as called:
        assert server.post(f"{path}/cancel", {}).json()["status"] == "cancelled"
    assert (called.on_loop | called.on_store) & SLOW_WORK == set()


@pytest.mark.parametrize("background", [False, True])
def test_an_answer_is_stored_as_rows_that_are_there(server: Running, background: bool) -> None:
    """Guards those who write pieces: whoever keeps a long answer writes its JSON elsewhere."""
    asked: dict[str, Any] = {"stream": True, "max_output_tokens": 200}
    with calls_seen(server) as called:
        assert ask(server, background=background, **asked).status_code == 200
    assert "response_table" in called.on_store
    assert called.on_store & SLOW_WORK == set()
