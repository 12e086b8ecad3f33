"""Bringing a backend back: pauses, counting, giving up."""

from jitney.core import limits
from jitney.engine.in_flight import PAUSE_S, PAUSE_S_MAX, Recovery
from jitney.errors import BackendCrashed
from tests.unit.engine.worlds import FaultyBackend


def test_a_healthy_backend_is_left_alone(backend: FaultyBackend) -> None:
    """Guards against resets that nobody asked for: they cost all memory."""
    recovery = Recovery(backend)
    assert recovery.attempt(0.0) is None
    assert recovery.is_ready
    assert backend.reset_count == 0


def test_a_lost_backend_is_reset_once(backend: FaultyBackend) -> None:
    """Guards against a backend that stays lost, and against resetting it at every tick."""
    recovery = Recovery(backend)
    recovery.lose(0.0)
    assert not recovery.is_ready
    assert recovery.attempt(0.0) is None
    assert recovery.is_ready
    recovery.attempt(1.0)
    assert backend.reset_count == 1


def test_pauses_grow_and_nothing_is_tried_before_they_are_over(backend: FaultyBackend) -> None:
    """Guards against a machine that is kept busy by a backend which cannot start."""
    backend.reset_faults = [BackendCrashed("no"), BackendCrashed("no")]
    recovery = Recovery(backend)
    recovery.lose(0.0)
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


def test_it_gives_up_after_the_stated_time(backend: FaultyBackend) -> None:
    """Guards against restarts without end, and against pauses that grow without one."""
    backend.reset_faults = [OSError("no")] * 100
    recovery = Recovery(backend)
    recovery.lose(7.0)
    now = 7.0
    while not recovery.has_given_up:
        tried_at = now
        assert recovery.attempt(now) is not None
        assert recovery.retry_at is not None
        assert now < recovery.retry_at <= now + PAUSE_S_MAX
        now = recovery.retry_at
    assert 7.0 + limits.GIVE_UP_S <= tried_at < 7.0 + limits.GIVE_UP_S + PAUSE_S_MAX


def test_it_does_not_give_up_because_a_clock_leapt(backend: FaultyBackend) -> None:
    """Guards a machine that was suspended: one failed attempt is no reason."""
    backend.reset_faults = [OSError("no")] * limits.GIVE_UP_ATTEMPTS
    recovery = Recovery(backend)
    recovery.lose(0.0)
    for count in range(limits.GIVE_UP_ATTEMPTS):
        assert not recovery.has_given_up, count
        assert recovery.attempt(limits.GIVE_UP_S * (count + 1)) is not None
    assert recovery.has_given_up


def test_the_time_starts_anew_with_each_loss(backend: FaultyBackend) -> None:
    """Guards a backend that is lost now and then: each time it has as long to come back."""
    recovery = Recovery(backend)
    recovery.lose(0.0)
    assert recovery.attempt(0.0) is None
    backend.reset_faults = [OSError("no")] * limits.GIVE_UP_ATTEMPTS
    recovery.lose(2 * limits.GIVE_UP_S)
    for _ in range(limits.GIVE_UP_ATTEMPTS):
        assert recovery.attempt(recovery.retry_at or 2 * limits.GIVE_UP_S) is not None
    assert not recovery.has_given_up
