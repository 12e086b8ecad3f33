"""Batches under way: when a second one is launched, and what is told of those that are lost."""

from collections import deque

import pytest

from jitney.core.batch import Batch, Entry, Outcome
from jitney.core.scheduler import PlannedBatch
from jitney.engine.in_flight import LEAD_PART, LEAD_S_MIN, PLANNING_FACTOR, InFlight, LostBatch
from jitney.errors import BackendCrashed, BackendFailed
from tests.clock_for_tests import HandClock
from tests.unit.core.sequences import sequence

SECONDS = 0.2


def planned(number: int, size: int = 1) -> PlannedBatch:
    entries = tuple(Entry(slot, 0, (7,), wants_token=True) for slot in range(size))
    made = tuple(sequence(str(slot)) for slot in range(size))
    return PlannedBatch(Batch(number, (), entries), made, size, size, size)


def received(in_flight: InFlight, now: float = 0.0) -> Outcome:
    """The outcome of the oldest, taken in."""
    outcome = in_flight.receive()
    assert isinstance(outcome, Outcome)
    in_flight.pop_oldest(now)
    return outcome


class Elsewhere:
    """Answers in order, once it is told that it is done."""

    def __init__(self, idle_s: float = 0.0) -> None:
        self.sent: deque[Batch] = deque()
        self.idle_s = idle_s
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
        return Outcome(batch.number, (1,) * batch.entry_count, SECONDS, idle_s=self.idle_s)


class Here:
    """Computes when it is asked to."""

    def __init__(self) -> None:
        self.executed: list[int] = []

    def execute(self, batch: Batch) -> Outcome:
        self.executed.append(batch.number)
        return Outcome(batch.number, (1,) * batch.entry_count, SECONDS)


def test_a_backend_of_this_process_has_one_batch_at_a_time() -> None:
    """Guards in-process backends: they compute on this thread, so nothing is done meanwhile."""
    backend = Here()
    in_flight = InFlight(backend, HandClock())  # type: ignore[arg-type]
    for number in (1, 2):
        in_flight.send(planned(number), 0.0)
        assert in_flight.spare_s(0.0) is None
        received(in_flight)
    assert backend.executed == [1, 2]


@pytest.mark.parametrize(("sent_at", "late_s"), [(0.99, 0.04), (1.0, 0.0), (0.0, SECONDS)])
def test_a_device_that_waited_gets_the_next_batch_earlier(sent_at: float, late_s: float) -> None:
    """Guards GPUs in another process: what happens on the way to them is not seen here."""
    in_flight = InFlight(Elsewhere(idle_s=0.03), HandClock())  # type: ignore[arg-type]
    in_flight.send(planned(1), 0.0)
    in_flight.send(planned(2), sent_at)
    received(in_flight, 1.0)
    received(in_flight, 2.0)
    in_flight.send(planned(3), 2.0)
    lead_s = max(PLANNING_FACTOR * late_s, LEAD_PART * SECONDS)
    assert in_flight.spare_s(2.0) == pytest.approx(max(SECONDS - lead_s, 0.0))


def test_a_second_batch_waits_until_the_first_is_nearly_done() -> None:
    """Guards those who arrive: the next batch is not planned before it must be."""
    in_flight = InFlight(Elsewhere(), HandClock())  # type: ignore[arg-type]
    in_flight.send(planned(1), 0.0)
    assert in_flight.spare_s(0.0) is None, "how long the first one takes is not known"
    received(in_flight, 1.0)
    in_flight.send(planned(2), 2.0)
    assert in_flight.spare_s(2.0) == pytest.approx((1 - LEAD_PART) * SECONDS)
    assert in_flight.spare_s(2.0 + SECONDS / 2) == pytest.approx((0.5 - LEAD_PART) * SECONDS)
    assert in_flight.spare_s(9.0) == 0.0, "it may be done any moment"
    in_flight.send(planned(3), 2.1)
    assert in_flight.spare_s(2.1) is None, "two are under way"
    received(in_flight, 2.3)
    assert in_flight.spare_s(2.4) == pytest.approx((0.5 - LEAD_PART) * SECONDS), "begun at 2.3"


def test_the_time_of_a_batch_is_told_from_one_of_about_its_size() -> None:
    """Guards prompts: a pass over many tokens takes longer than the last one over few."""
    in_flight = InFlight(Elsewhere(), HandClock())  # type: ignore[arg-type]
    for size, is_known in ((16, False), (15, True), (16, True), (32, False), (16, False)):
        in_flight.send(planned(size, size), 0.0)
        assert (in_flight.spare_s(0.0) is not None) is is_known
        received(in_flight)


def test_the_lead_is_never_shorter_than_planning_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards fast passes: a share of them would be too short to plan and send in."""
    monkeypatch.setattr(f"{__name__}.SECONDS", 2 * LEAD_S_MIN)
    in_flight = InFlight(Elsewhere(), HandClock())  # type: ignore[arg-type]
    in_flight.send(planned(1), 0.0)
    received(in_flight)
    in_flight.send(planned(2), 0.0)
    assert in_flight.spare_s(0.0) == pytest.approx(LEAD_S_MIN)


def test_the_lead_grows_with_the_time_that_planning_takes() -> None:
    """Guards a GPU with hundreds of sequences: it would wait for each plan."""
    clock = HandClock()
    in_flight = InFlight(Elsewhere(), clock)  # type: ignore[arg-type]
    in_flight.send(planned(1), 0.0)
    received(in_flight)
    in_flight.send(planned(2), 0.0)
    clock.at = SECONDS / 2
    in_flight.send(planned(3), 0.1 * SECONDS)
    received(in_flight, SECONDS)
    lead_s = PLANNING_FACTOR * 0.4 * SECONDS
    assert in_flight.spare_s(SECONDS) == pytest.approx(SECONDS - lead_s)


def test_a_batch_that_is_late_is_still_under_way() -> None:
    """Guards against an outcome that is lost because something else was done meanwhile."""
    backend = Elsewhere()
    in_flight = InFlight(backend, HandClock())  # type: ignore[arg-type]
    in_flight.send(planned(1), 0.0)
    backend.is_late = True
    assert in_flight.receive(0.1) is None
    in_flight.send(planned(2), 0.0)
    assert [received(in_flight).number for _ in range(2)] == [1, 2]
    assert not in_flight


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
    in_flight = InFlight(backend, HandClock())  # type: ignore[arg-type]
    in_flight.send(planned(1), 0.0)
    backend.fault = fault
    in_flight.send(planned(2), 0.0)
    received(in_flight)
    lost = in_flight.receive()
    assert isinstance(lost, LostBatch)
    assert lost.error is fault
    assert bool(lost.sequences) is was_reached
    in_flight.clear()
    assert not in_flight
