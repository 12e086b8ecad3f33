"""Ctrl-C while native code runs that calls Python back."""

import ctypes
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from jitney.sandbox.interrupts import interrupts_held

Callback = ctypes.CFUNCTYPE(None)


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """As in a terminal, whatever started the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def _press() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_in_a_callback_is_raised_at_the_end() -> None:
    """Guards Ctrl-C while a model loads: it was printed at the entry of the callback, and lost."""
    entered: list[int] = []
    # The C library's own `raise`: the signal is there before the callback is entered.
    callback = Callback(lambda: entered.append(1))
    press = ctypes.PyDLL(None)["raise"]

    def work() -> None:
        with interrupts_held():
            press(int(signal.SIGINT))
            callback()
            entered.append(2)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert entered == [1, 2]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handler_that_was_there_is_called_once() -> None:
    """Guards a server, whose own handler counts the interrupts."""
    seen: list[int] = []

    def handle(number: int, _: FrameType | None) -> None:
        seen.append(number)

    signal.signal(signal.SIGINT, handle)
    with interrupts_held():
        _press()
        assert seen == []
    assert seen == [signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is handle


def test_without_an_interrupt_nothing_happens() -> None:
    """Guards the usual case, and a failure inside: the handler is put back."""
    with pytest.raises(ValueError), interrupts_held():
        raise ValueError
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ignored_interrupts_stay_ignored() -> None:
    """Guards a process in the background, which a shell has ignore interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_held():
        _press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_changes_nothing() -> None:
    """Guards a load in a thread, where Python lets nobody set a handler."""

    def load() -> object:
        with interrupts_held():
            return signal.getsignal(signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(load).result(100) is signal.default_int_handler
