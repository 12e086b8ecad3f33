"""Observers: told in order, told again when they raise, never hurting the tick."""

import logging
from dataclasses import replace

import pytest

from jitney.core.request import RequestId
from jitney.engine.observe import Observers, log_batch_composition
from jitney.records import BackendLost, Member, Record
from tests.unit.server.observe.records_for_tests import tick

RECORD = BackendLost(at=1.0, error="gone", restarts_failed=0)


def test_an_observer_that_raises_is_told_of_the_next_record_and_so_are_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards the tick against whatever subscribes to it, and accounts against one mistake."""
    observers = Observers()
    seen: list[Record] = []
    calls: list[Record] = []

    def broken(record: Record) -> None:
        calls.append(record)
        if len(calls) != 2:
            raise ZeroDivisionError

    observers.add(broken)
    observers.add(seen.append)
    with caplog.at_level(logging.WARNING, "jitney.engine"):
        for _ in range(3):
            observers.tell(RECORD)
    assert calls == seen == [RECORD] * 3
    assert observers.failed_count == 2
    assert [each.args[0] for each in caplog.records if isinstance(each.args, tuple)] == [1, 2]


def test_an_observer_that_always_raises_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards the disk: a record comes with every tick."""
    observers = Observers()

    def broken(record: Record) -> None:
        raise ZeroDivisionError

    observers.add(broken)
    with caplog.at_level(logging.WARNING, "jitney.engine"):
        for _ in range(1000):
            observers.tell(RECORD)
    assert observers.failed_count == 1000
    assert len(caplog.records) == 10


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
    members = (Member(RequestId("a"), 0, 3, 7, 1, True), Member(RequestId("b"), 1, 4, 0, 4))
    record = replace(tick(1.0, 12, *members), queue_depth=5)
    with caplog.at_level(logging.INFO, "jitney.engine"):
        log_batch_composition(record)
        log_batch_composition(RECORD)
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith("tick 12: 2 entries, 1 decode + 4 prefill tokens, 5 waiting")
    assert line.endswith("a.0@3[7:8] b.1@4[0:4]")
