"""What reading a stored response costs others: the store's thread reads rows, and a worker thread
makes items, events and JSON of them. Neither it nor the event loop does."""

import asyncio
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.e2e.batches.batch_client import SLOW
from tests.e2e.openai_responses.response_client import PATH, ask, replayed, text_of
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import WAIT_S, Running, World, wait_until

SLOW_WORK = {"output_of", "_write", "decoder", "encoder"}
"""What makes items of an answer, and what reads and writes JSON."""


@contextmanager
def called(server: Running) -> Iterator[set[str]]:
    """Functions, and modules of some, that are called on the event loop and the store's thread."""
    assert server.batches is not None
    store = server.batches.thread
    seen: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            seen.update((Path(code.co_filename).stem, code.co_name))

    def set_both(hook: Any) -> None:
        ready = threading.Event()

        async def set_hooks() -> None:
            sys.setprofile(hook)
            await store.call(lambda _: sys.setprofile(hook))
            ready.set()

        server.service.loop_calls.call(lambda: tasks.append(asyncio.ensure_future(set_hooks())))
        assert ready.wait(WAIT_S)

    tasks: list[asyncio.Future[None]] = []
    # The first stream makes the way to the event loop.
    ask(server, stream=True, store=False)
    set_both(note)
    try:
        yield seen
    finally:
        set_both(None)


def test_a_stored_response_is_read_without_the_store_or_the_loop(server: Running) -> None:
    """Guards all other streams: whoever polls a long answer takes no time of the store's thread,
    which writes everybody's pieces, and none of the event loop."""
    told = ask(server, max_output_tokens=200).json()
    with called(server) as seen:
        assert server.get(f"{PATH}/{told['id']}").json() == told
        assert server.get(f"{PATH}/{told['id']}/input_items").status_code == 200
        assert replayed(server, told["id"])[-1]["response"] == told
    assert seen & SLOW_WORK == set()
    assert {"response_table", "response_routes"} <= seen, "nothing was noted"


def test_a_conversation_is_read_without_the_store_or_the_loop(server: Running) -> None:
    """The same for those who go on: each turn reads all before it."""
    first = ask(server, "one").json()
    second = ask(server, "two", previous_response_id=first["id"]).json()
    with called(server) as seen:
        third = ask(server, "three", previous_response_id=second["id"], store=False)
    assert third.status_code == 200
    # The new answer itself has been written by the event loop.
    assert "output_of" not in seen
    assert "stored_rows" not in seen


def test_a_cancelled_response_is_made_once_and_elsewhere(start: Start, tmp_path: Path) -> None:
    """The same for a cancel."""
    server = start(World(jobs_dir=tmp_path / "jobs", backend=SLOW))
    asked: dict[str, Any] = {"max_output_tokens": 3000, "ignore_eos": True}
    path = f"{PATH}/{ask(server, background=True, **asked).json()['id']}"
    wait_until(lambda: len(text_of(server.get(path).json())) > 20, "it made nothing")
    server.post(f"{path}/cancel", {})
    server.check_idle()
    with called(server) as seen:
        assert server.post(f"{path}/cancel", {}).json()["status"] == "cancelled"
    assert seen & SLOW_WORK == set()
