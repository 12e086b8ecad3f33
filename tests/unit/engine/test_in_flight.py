"""Batches under way: when a second one is launched, and what is told of those that are lost."""

from collections import deque

import pytest

from jitney.core.batch import Batch, Entry, Outcome, Sample
from jitney.engine.in_flight import LEAD_S_MIN, LEAD_SHARE, Flights, Launch, Lost
from jitney.errors import BackendCrashed, BackendFailed

SECONDS = 0.2


def launched(number: int, size: int = 1, at: float = 0.0) -> Launch:
    entries = tuple(Entry(slot, 0, (7,), wants_token=True) for slot in range(size))
    return Launch(Batch(number, (), entries), {}, {}, left_at=at)


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
        flights.launch(launched(number))
        assert flights.spare_s(0.0) is None
        assert isinstance(flights.land(), Outcome)
    assert backend.executed == [1, 2]


def test_a_second_batch_waits_until_the_first_is_nearly_done() -> None:
    """Guards those who arrive: the next batch is not planned before it must be."""
    flights = Flights(Elsewhere())  # type: ignore[arg-type]
    flights.launch(launched(1))
    assert flights.spare_s(0.0) is None, "how long the first one takes is not known"
    flights.land()
    flights.note_landed(1.0)
    flights.launch(launched(2, at=2.0))
    assert flights.spare_s(2.0) == pytest.approx((1 - LEAD_SHARE) * SECONDS)
    assert flights.spare_s(2.0 + SECONDS / 2) == pytest.approx((0.5 - LEAD_SHARE) * SECONDS)
    assert flights.spare_s(9.0) == 0.0, "it may be done any moment"
    flights.launch(launched(3, at=2.1))
    assert flights.spare_s(2.1) is None, "two are under way"
    flights.land()
    flights.note_landed(2.3)
    assert flights.spare_s(2.4) == pytest.approx((0.5 - LEAD_SHARE) * SECONDS), "begun at 2.3"


def test_the_time_of_a_batch_is_told_from_one_of_about_its_size() -> None:
    """Guards prompts: a pass over many tokens takes longer than the last one over few."""
    flights = Flights(Elsewhere())  # type: ignore[arg-type]
    for size, is_known in ((16, False), (15, True), (16, True), (32, False), (16, False)):
        flights.launch(launched(size, size=size))
        assert (flights.spare_s(0.0) is not None) is is_known
        flights.land()


def test_the_lead_is_never_shorter_than_planning_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards fast passes: a share of them would be too short to plan and send in."""
    monkeypatch.setattr(f"{__name__}.SECONDS", 2 * LEAD_S_MIN)
    flights = Flights(Elsewhere())  # type: ignore[arg-type]
    flights.launch(launched(1))
    flights.land()
    flights.launch(launched(2))
    assert flights.spare_s(0.0) == pytest.approx(LEAD_S_MIN)


def test_a_batch_that_is_late_is_still_under_way() -> None:
    """Guards against an outcome that is lost because something else was done meanwhile."""
    backend = Elsewhere()
    flights = Flights(backend)  # type: ignore[arg-type]
    flights.launch(launched(1))
    backend.is_late = True
    assert flights.land(0.1) is None
    flights.launch(launched(2))
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
    flights.launch(launched(1))
    backend.fault = fault
    flights.launch(launched(2))
    assert isinstance(flights.land(), Outcome)
    lost = flights.land()
    assert isinstance(lost, Lost)
    assert lost.error is fault
    assert lost.was_reached is was_reached
    assert not flights
