"""Bringing a backend back: pauses, counting, giving up."""

from typing import Protocol

from jitney.core import limits
from jitney.core.backend import Backend
from jitney.engine.recovery import PAUSE_S, Recovery
from jitney.errors import BackendCrashed


class Resettable(Backend, Protocol):
    """What these tests need of the backend that the fixture gives."""

    reset_faults: list[Exception | None]
    reset_count: int


def test_a_healthy_backend_is_left_alone(backend: Resettable) -> None:
    """Guards against resets that nobody asked for: they cost all memory."""
    recovery = Recovery(backend)
    assert recovery.attempt(0.0) is None
    assert recovery.is_ready
    assert backend.reset_count == 0


def test_a_lost_backend_is_reset_once(backend: Resettable) -> None:
    """Guards against a backend that stays lost, and against resetting it at every tick."""
    recovery = Recovery(backend)
    recovery.lose()
    assert not recovery.is_ready
    assert recovery.attempt(0.0) is None
    assert recovery.is_ready
    recovery.attempt(1.0)
    assert backend.reset_count == 1


def test_pauses_grow_and_nothing_is_tried_before_they_are_over(backend: Resettable) -> None:
    """Guards against a machine that is kept busy by a backend which cannot start."""
    backend.reset_faults = [BackendCrashed("no"), BackendCrashed("no")]
    recovery = Recovery(backend)
    recovery.lose()
    assert recovery.attempt(0.0) is not None
    assert recovery.retry_at == PAUSE_S
    assert recovery.attempt(PAUSE_S / 2) is None
    assert not recovery.is_ready
    assert backend.reset_count == 1
    assert recovery.attempt(PAUSE_S) is not None
    assert recovery.retry_at == 3 * PAUSE_S
    assert recovery.attempt(3 * PAUSE_S) is None
    assert recovery.is_ready
    assert recovery.failed_count == 0


def test_it_gives_up_after_the_stated_number_of_attempts(backend: Resettable) -> None:
    """Guards against restarts without end."""
    backend.reset_faults = [OSError("no")] * limits.RESTARTS_MAX
    recovery = Recovery(backend)
    recovery.lose()
    now = 0.0
    for _ in range(limits.RESTARTS_MAX):
        assert not recovery.is_hopeless
        assert recovery.attempt(now) is not None
        assert recovery.retry_at is not None
        now = recovery.retry_at
    assert recovery.is_hopeless
