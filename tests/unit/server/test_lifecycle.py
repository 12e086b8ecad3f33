"""What the server asks of the system for itself."""

import os
import sys
import threading

import pytest

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
