"""Tests of `benchmarks.http hostile`: that it sees what disturbs a bystander, and only that."""

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.http.hostile import aggressor, confine
from benchmarks.http.hostile.attack import Attack, Bounds, Target, crowd, status_of
from benchmarks.http.hostile.bystander import Tally
from benchmarks.http.hostile.command import Runner, main
from benchmarks.http.hostile.judge import OK, OVER, SKIPPED, left
from benchmarks.http.hostile.processes import Taken
from benchmarks.http.hostile.registry import ATTACKS, chosen, named
from benchmarks.http.hostile.table import line
from benchmarks.http.served import missing_here

FLAGS = ("--backend", "fake")
NOT_HERE = missing_here()
PATIENT = Bounds(gap_ms=60_000.0, health_ms=60_000.0, chat_ms=60_000.0)
"""A test machine may be busy: what is asserted of a calm server is not how fast it is."""


@pytest.mark.skipif(NOT_HERE is not None, reason=str(NOT_HERE))
def test_a_server_that_stands_still_is_over_and_one_left_alone_is_ok() -> None:
    """Guards the table: a harness that sees nothing would call every server well."""
    with Runner(FLAGS, print, calm_s=0.5) as runner:
        alone = dataclasses.replace(named("nothing"), bounds=PATIENT)
        row = runner.run(alone, 0.5)
        assert (row.verdict, row.why) == (OK, [])
        stopped = runner.run(named("server-stopped"), 5.0)
    assert stopped.verdict == OVER
    assert any(why.startswith(("gap", "/health")) for why in stopped.why), stopped.why
    assert "server-stopped" in line(stopped)
    assert stopped.json()["verdict"] == OVER


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


def test_attacks_are_chosen_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards `--only` and `--list`."""
    assert [each.name for each in chosen(["burn", "nothing"])] == ["burn", "nothing"]
    assert "server-stopped" not in [each.name for each in chosen(None)]
    with pytest.raises(LookupError, match="no attack nonsense"):
        named("nonsense")
    assert main(["--list"]) == 0
    assert "chunks-after-401" in capsys.readouterr().out


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


def test_an_attack_ends_with_its_time_and_a_lost_connection_is_told() -> None:
    """Guards the run: one attack must not hang it or end it."""

    async def endless(target: Target) -> None:
        await asyncio.Event().wait()

    async def cut(target: Target) -> None:
        async def one(number: int) -> None:
            raise ConnectionResetError

        await crowd(2, one)

    target = Target(port=1, pid=1, key="")
    for run, seconds in ((endless, 0.01), (cut, 10.0)):
        attack = Attack(name="a", text="a", run=run)
        asyncio.run(aggressor.attack_for(attack, target, seconds))
    assert target.told == {"ConnectionResetError": 1}


@pytest.mark.parametrize(
    ("answer", "told"),
    [(b"HTTP/1.1 401 Unauthorized\r\n", "401"), (b"", "closed"), (b"\x15\x03", "no HTTP")],
)
def test_an_answer_is_told_by_its_status(answer: bytes, told: str) -> None:
    """Guards the last column."""
    assert status_of(answer) == told


def test_without_cgroups_there_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards machines where no limit can be set."""
    monkeypatch.setattr(confine, "_VERSIONS", ((tmp_path / "no", "a"), (tmp_path, "memory.max")))
    assert "no memory cgroup" in str(confine.missing())
    assert list(tmp_path.iterdir()) == []
