"""Observers: told in order, dropped when they raise, never hurting the tick."""

import logging

import pytest

from jitney.core.request import RequestId
from jitney.engine.observe import Observers, log_batch_composition
from jitney.engine.records import BackendLost, Member, Record, TickRecord

RECORD = BackendLost(at=1.0, error="gone", restarts_failed=0)


def test_an_observer_that_raises_is_dropped_and_the_others_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards the tick against whatever subscribes to it."""
    observers = Observers()
    seen: list[Record] = []
    calls: list[Record] = []

    def broken(record: Record) -> None:
        calls.append(record)
        raise ZeroDivisionError

    observers.add(broken)
    observers.add(seen.append)
    with caplog.at_level(logging.WARNING, "jitney.engine"):
        observers.tell(RECORD)
        observers.tell(RECORD)
    assert len(calls) == 1
    assert seen == [RECORD, RECORD]
    assert len(caplog.records) == 1


def test_an_observer_can_leave() -> None:
    """Guards against observers that outlive their interest."""
    observers = Observers()
    seen: list[Record] = []
    observe = seen.append
    observers.add(observe)
    observers.remove(observe)
    observers.remove(observe)
    observers.tell(RECORD)
    assert seen == []


def test_the_composition_of_a_batch_is_one_line_with_ids_and_spans(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards the log line that explains a tick."""
    record = TickRecord(
        at=1.0,
        number=12,
        batch_size=2,
        decode_tokens=1,
        prefill_tokens=4,
        active_slots=2,
        queue_depth=5,
        kv_used=40,
        kv_cached=0,
        sampled_tokens=1,
        preempted_count=0,
        forward_ms=3.25,
        tick_ms=3.5,
        members=(Member(RequestId("a"), 0, 3, 7, 1), Member(RequestId("b"), 1, 4, 0, 4)),
    )
    with caplog.at_level(logging.INFO, "jitney.engine"):
        log_batch_composition(record)
        log_batch_composition(RECORD)
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("tick 12: 2 entries, 1 decode + 4 prefill tokens, 5 waiting")
    assert line.endswith("a.0@3[7:8] b.1@4[0:4]")
