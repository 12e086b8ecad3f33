"""Batches under way: when a second one is launched, and what is told of those that are lost."""

from collections import deque

import pytest

from jitney.core.batch import Batch, Entry, Outcome, Sample
from jitney.engine.flights import LAUNCH_SHARE, Flight, Flights, Lost
from jitney.errors import BackendCrashed, BackendFailed

SECONDS = 0.2


def flight(number: int, size: int = 1) -> Flight:
    entries = tuple(Entry(slot, 0, (7,), wants_token=True) for slot in range(size))
    return Flight(Batch(number, (), entries), {}, launched_at=0.0)


class Elsewhere:
    """Answers in order, once it is told that it is done."""

    def __init__(self) -> None:
        self.sent: deque[Batch] = deque()
        self.is_late = False
        self.fault: Exception | None = None

    def send(self, batch: Batch) -> None:
        if self.fault is not None:
            raise self.fault
        self.sent.append(batch)

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        if self.is_late and limit_s is not None:
            return None
        batch = self.sent.popleft()
        return Outcome(batch.number, tuple(Sample(1) for _ in batch.entries), SECONDS)


class Here:
    """Computes when it is asked to."""

    def __init__(self) -> None:
        self.executed: list[int] = []

    def execute(self, batch: Batch) -> Outcome:
        self.executed.append(batch.number)
        return Outcome(batch.number, tuple(Sample(1) for _ in batch.entries), SECONDS)


def test_a_backend_of_this_process_has_one_batch_at_a_time() -> None:
    """Guards in-process backends: they compute on this thread, so nothing is done meanwhile."""
    backend = Here()
    flights = Flights(backend)  # type: ignore[arg-type]
    for number in (1, 2):
        flights.launch(flight(number))
        assert flights.spare_s is None
        assert isinstance(flights.land(), Outcome)
    assert backend.executed == [1, 2]


def test_a_second_batch_waits_until_the_first_is_nearly_done() -> None:
    """Guards those who arrive: the next batch is not planned before it must be."""
    flights = Flights(Elsewhere())  # type: ignore[arg-type]
    flights.launch(flight(1))
    assert flights.spare_s is None, "how long the first one takes is not known"
    flights.land()
    flights.launch(flight(2))
    assert flights.spare_s == pytest.approx(LAUNCH_SHARE * SECONDS)
    flights.launch(flight(3))
    assert flights.spare_s is None, "two are under way"
    flights.land()
    flights.land()
    flights.launch(flight(4, size=2))
    assert flights.spare_s is None, "none of this size was seen"


def test_a_batch_that_is_late_is_still_under_way() -> None:
    """Guards against an outcome that is lost because something else was done meanwhile."""
    backend = Elsewhere()
    flights = Flights(backend)  # type: ignore[arg-type]
    flights.launch(flight(1))
    backend.is_late = True
    assert flights.land(0.1) is None
    flights.launch(flight(2))
    landed = [flights.land(), flights.land()]
    assert [each.number for each in landed if isinstance(each, Outcome)] == [1, 2]
    assert not flights


@pytest.mark.parametrize(
    ("fault", "was_reached"),
    [
        (BackendFailed("no room"), True),
        (BackendCrashed("gone", 9), True),
        (BackendCrashed("never there", was_reached=False), False),
    ],
)
def test_a_batch_that_did_not_get_away_is_told_in_its_turn(
    fault: Exception, was_reached: bool
) -> None:
    """Guards the one before it, which may be done and well."""
    backend = Elsewhere()
    flights = Flights(backend)  # type: ignore[arg-type]
    flights.launch(flight(1))
    backend.fault = fault
    flights.launch(flight(2))
    assert isinstance(flights.land(), Outcome)
    lost = flights.land()
    assert isinstance(lost, Lost)
    assert lost.error is fault
    assert lost.was_reached is was_reached
    assert not flights
