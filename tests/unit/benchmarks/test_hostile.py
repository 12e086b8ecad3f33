"""Tests of `benchmarks.http hostile`: that it sees what disturbs a bystander, and only that."""

import contextlib
import dataclasses
from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.http.hostile import judge
from benchmarks.http.hostile.attack import Bounds
from benchmarks.http.hostile.bystander import Tally
from benchmarks.http.hostile.command import Runner
from benchmarks.http.hostile.judge import OK, OVER, SKIPPED, Row, left
from benchmarks.http.hostile.processes import Taken
from benchmarks.http.hostile.registry import ATTACKS, named
from benchmarks.http.hostile.table import line
from benchmarks.http.hostile.watched import Watched

FLAGS = ("--backend", "fake")
AT_REST = Taken(100.0, 1000.0, 20, 10, 2)


def beside(worst_ms: float, failures: dict[str, int], told: dict[str, int]) -> Row:
    """The row of an attack during which a new chat and a stream stood still for so long."""
    calm = {"worst_ms": 10.0, "count": 9, "failures": {}}
    slow = {**calm, "worst_ms": 10.0 + worst_ms, "failures": failures}
    tallies = iter([None, {"stream": slow, "chat": slow, "health": calm, "late": calm}])
    server = SimpleNamespace(
        pid=1,
        is_alive=True,
        warm=AT_REST,
        calm={"stream": calm, "chat": calm, "health": calm},
        bystander=SimpleNamespace(take=lambda: next(tallies)),
        attack=lambda attack, seconds: SimpleNamespace(faults=[], told=told),
    )
    return judge.run_beside(cast(Watched, server), named("nothing"), 1.0)


def test_a_caller_who_waits_too_long_or_fails_makes_it_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the table: a harness that sees nothing would call every server well."""
    peak = SimpleNamespace(server_mib=0.0, children_mib=0.0)
    monkeypatch.setattr(judge, "taken", lambda pid: AT_REST)
    monkeypatch.setattr(judge, "Peak", lambda pid: contextlib.nullcontext(peak))
    monkeypatch.setattr(judge, "LOOK_S", 0.0)
    bounds = named("nothing").bounds
    row = beside(bounds.gap_ms, {}, {"200": 3})
    assert (row.verdict, row.why) == (OK, [])
    over = beside(60_000.0, {}, {})
    assert over.verdict == over.json()["verdict"] == OVER
    assert [why.split()[0] for why in over.why] == ["gap", "new"]
    assert "nothing" in line(over)
    assert beside(0.0, {"reset": 2}, {}).why == [
        "stream failed: reset x 2",
        "chat failed: reset x 2",
    ]
    assert beside(0.0, {}, {"500": 1}).why == ["status 500 was told"]


def test_what_is_missing_is_skipped_with_its_reason() -> None:
    """Guards readers: an attack that was not done must not look like one that was withstood."""
    attack = dataclasses.replace(named("nothing"), missing=lambda: "there is no such thing here")
    with Runner(FLAGS, print) as runner:
        row = runner.run(attack)
    assert (row.verdict, row.why) == (SKIPPED, ["there is no such thing here"])
    assert "skipped: there is no such thing here" in line(row)


def test_every_attack_is_named_once_and_says_why_its_bounds_are_wider() -> None:
    """Guards the list: a wider bound without a reason hides what it should show."""
    assert [
        name for name, count in Counter(each.name for each in ATTACKS).items() if count > 1
    ] == []
    usual = Bounds()
    assert [each.name for each in ATTACKS if each.bounds != usual and not each.bounds.because] == []
    assert all(each.text and each.run.__doc__ for each in ATTACKS)


def test_what_is_under_way_counts() -> None:
    """Guards against a stall that lasts beyond the end of an attack and was never an event."""
    tally = Tally()
    tally.begin()
    assert tally.since is not None
    tally.since -= 3.0
    assert tally.take()["worst_ms"] >= 3000.0
    tally.end()
    assert tally.take()["worst_ms"] >= 3000.0
    assert tally.take() == {"worst_ms": 0.0, "count": 0, "failures": {}}


def test_what_is_left_is_told() -> None:
    """Guards the bounds: a tenth or 30 MiB of memory, and nothing else at all."""
    before = Taken(100.0, 1000.0, 20, 10, 2)
    assert left(before, Taken(130.0, 1100.0, 20, 16, 2), Bounds()) == []
    assert left(before, Taken(131.0, 1101.0, 21, 17, 3), Bounds()) == [
        "memory of server 100 to 131 MiB",
        "memory of children 1000 to 1101 MiB",
        "files 20 to 21",
        "threads 10 to 17",
        "processes 2 to 3",
    ]
