"""What the server asks of the system for itself."""

import asyncio
import os
import signal
import sys
import threading
from typing import Any, cast

import pytest
import uvloop

from jitney.server import lifecycle

WAIT_S = 100.0


def niceness_after(monkeypatch: pytest.MonkeyPatch, platform: str) -> int:
    """How much nicer a thread of its own is after it stepped back."""
    found: list[int] = []

    def lower_priority() -> None:
        before = os.getpriority(os.PRIO_PROCESS, 0)
        lifecycle._lower_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, 0) - before)

    monkeypatch.setattr(sys, "platform", platform)
    thread = threading.Thread(target=lower_priority)
    thread.start()
    thread.join(WAIT_S)
    return found[0]


def test_where_niceness_is_the_whole_process_nothing_is_stepped_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards macOS: there the forward pass would step back as well."""
    assert niceness_after(monkeypatch, "darwin") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="niceness of threads is Linux's")
def test_on_linux_one_thread_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the forward pass, and that the test above could fail."""
    before = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert niceness_after(monkeypatch, "linux") == min(5, 19 - before)
    assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == before


@pytest.mark.parametrize("was_ignored", [True, False])
def test_the_end_of_a_terminal_is_handled_unless_it_is_ignored(*, was_ignored: bool) -> None:
    """Guards `nohup jitney serve &`, and everybody else's streams."""
    nothing = cast(Any, None)  # Any: nothing of the server is asked

    async def handles() -> bool:
        loop = asyncio.get_running_loop()
        lifecycle.Lifecycle(nothing, nothing)._handle_signals(loop)
        return loop.remove_signal_handler(signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if was_ignored else signal.SIG_DFL)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(handles()) is not was_ignored
    finally:
        signal.signal(signal.SIGHUP, before)
