"""A process that is started and spoken to; its life and end are held by `test_owner` and by the
tests of the backend's process."""

import sys

import pytest

from jitney.sandbox.child_process import ChildProcess
from jitney.sandbox.frames import ChannelClosed

WAIT_S = 30.0


def test_a_process_that_cannot_be_started_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the files of a machine that has no room for a process; a socket left open warns."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ChildProcessError, match="No such file"):
        ChildProcess("jitney.sandbox.child")


def test_the_end_of_what_it_wrote_is_kept() -> None:
    """Guards the sentence that says why a backend's process ended."""
    child = ChildProcess("jitney.sandbox.child", "too", "many", "arguments", keeps_output=True)
    with pytest.raises(ChannelClosed):
        child.channels[0].receive(WAIT_S)
    child.wait_or_kill(WAIT_S)
    assert child.has_ended
    assert (child.status, child.signal) == (1, None)
    assert child.last_lines().endswith("ValueError: too many values to unpack (expected 3)")
    child.end(WAIT_S)


def test_a_process_is_killed_with_its_signal_told() -> None:
    """Guards the number by which a crash is told from an end."""
    child = ChildProcess("jitney.sandbox.child", "jitney", "nothing")
    assert child.status is None
    child.kill()
    assert child.has_ended
    assert (child.signal, child.last_lines()) == (9, "")
