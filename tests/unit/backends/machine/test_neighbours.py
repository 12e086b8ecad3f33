"""How many threads leave room for others: a written file of the system, and a clock of our own."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jitney.backends.machine import neighbours
from jitney.backends.machine.neighbours import SAMPLE_S, Neighbours

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
LOOK_S = 1.0


@dataclass
class Machine:
    """Cores with work on them, a clock, and the time that our own process has used."""

    stat: Path
    cores: int
    now: float = 100.0
    own_s: float = 0.0
    parent_s: float = 0.0
    seconds: dict[tuple[int, str], float] = field(default_factory=dict)
    busy_now: dict[int, float] = field(default_factory=dict)
    """What others use while we take a short look."""

    def neighbours(self, threads: int) -> Neighbours:
        return Neighbours(threads, stat=self.stat)

    def write(self) -> None:
        """The file, as Linux writes it: all cores together, then each, then other things."""
        columns = ("user", "nice", "system", "idle", "iowait", "irq", "softirq")
        rows = [
            [round(self.seconds.get((core, each), 0) * TICKS_PER_S) for each in columns]
            for core in range(self.cores)
        ]
        lines = [f"cpu  {' '.join(map(str, map(sum, zip(*rows, strict=True))))} 0 0 0"]
        lines += [f"cpu{core} {' '.join(map(str, row))} 0 0 0" for core, row in enumerate(rows)]
        self.stat.write_text("\n".join((*lines, "intr 12345 0 0", "ctxt 99999", "")))

    def run(self, seconds: float, busy: dict[int, float], *, column: str = "user") -> None:
        """Let time pass, with so much of each of these cores in use."""
        self.now += seconds
        for core, share in busy.items():
            used = self.seconds.get((core, column), 0.0)
            self.seconds[core, column] = used + share * seconds
        self.write()


@pytest.fixture
def allow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    """So many cores, of which this process may use these, or all."""

    def made(cores: int, allowed: set[int] | None = None) -> Machine:
        usable = set(range(cores)) if allowed is None else allowed
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: usable, raising=False)
        machine = Machine(tmp_path / "stat", cores)
        for name, replaced in (
            ("perf_counter", lambda: machine.now),
            ("own_s", lambda: machine.own_s),
            ("parent_s", lambda: machine.parent_s),
            ("wait_s", lambda seconds: machine.run(seconds, machine.busy_now)),
        ):
            monkeypatch.setattr(neighbours, name, replaced)
        machine.write()
        return machine

    return made


@pytest.fixture
def machine(allow: Callable[..., Machine]) -> Machine:
    """Sixteen cores."""
    return allow(16)


@pytest.fixture
def small(allow: Callable[..., Machine]) -> Machine:
    """Two cores."""
    return allow(2)


def threads_beside(machine: Machine, threads: int, busy: dict[int, float], **given: str) -> int:
    """What is used after others were so busy for a while."""
    neighbours = machine.neighbours(threads)
    assert neighbours.threads() == threads
    machine.run(LOOK_S, busy, **given)
    return neighbours.threads()


@pytest.mark.parametrize(
    ("busy", "threads"),
    [
        ({}, 2),
        ({0: 0.15, 1: 0.15}, 2),
        ({0: 0.5}, 1),
        ({0: 1.0}, 1),
        ({0: 0.5, 1: 0.5}, 1),
        ({0: 1.0, 1: 1.0}, 1),
    ],
    ids=["quiet", "a little", "half", "one loop", "two halves", "two loops"],
)
def test_two_cores(small: Machine, busy: dict[int, float], threads: int) -> None:
    """Guards the small machine: two threads that spin beside a loop are slower than one.

    A loop that shares its core with a thread of ours gets half of it, and is seen all the same.
    """
    assert threads_beside(small, 2, busy) == threads


@pytest.mark.parametrize(
    ("threads_max", "busy_cores", "threads"),
    [(16, 0, 16), (16, 2, 14), (16, 15, 1), (16, 16, 1), (8, 2, 8), (8, 10, 6), (1, 16, 1)],
)
def test_sixteen_cores(machine: Machine, threads_max: int, busy_cores: int, threads: int) -> None:
    """Guards the large machine: as many threads as there are cores left over, and never more."""
    busy = dict.fromkeys(range(busy_cores), 1.0)
    assert threads_beside(machine, threads_max, busy) == threads


@pytest.mark.parametrize("column", ["user", "nice", "system", "irq", "softirq"])
def test_all_work_of_others_counts(machine: Machine, column: str) -> None:
    """Guards against a neighbour that is not seen: its core is taken, whatever it does there."""
    assert threads_beside(machine, 16, {3: 1.0, 4: 1.0}, column=column) == 14


@pytest.mark.parametrize("column", ["idle", "iowait"])
def test_cores_that_wait_are_free(machine: Machine, column: str) -> None:
    """Guards an idle machine: time that nobody uses is nobody's."""
    assert threads_beside(machine, 16, dict.fromkeys(range(16), 1.0), column=column) == 16


def test_our_own_work_is_not_a_neighbours(machine: Machine) -> None:
    """Guards against giving way to oneself: threads would go down to one and stay there."""
    neighbours = machine.neighbours(16)
    neighbours.threads()
    machine.own_s += 16 * LOOK_S
    machine.run(LOOK_S, dict.fromkeys(range(16), 1.0))
    assert neighbours.threads() == 16


def test_cores_that_we_may_not_use_do_not_count(allow: Callable[..., Machine]) -> None:
    """Guards a container: what runs beside it on other cores takes nothing from it."""
    part = allow(16, {4, 5, 6, 7})
    assert threads_beside(part, 4, {0: 1.0, 1: 1.0, 14: 1.0, 15: 1.0}) == 4
    assert threads_beside(part, 4, {4: 1.0, 15: 1.0}) == 3


def test_the_first_pass_after_a_while_knows(machine: Machine) -> None:
    """Guards the first request: the time since the model was loaded is a look already."""
    neighbours = machine.neighbours(16)
    machine.run(LOOK_S, {0: 1.0, 1: 1.0})
    assert neighbours.threads() == 14


def test_it_recovers(machine: Machine) -> None:
    """Guards the time after a neighbour: all cores are used again."""
    neighbours = machine.neighbours(16)
    neighbours.threads()
    found = []
    for busy in ({}, {0: 1.0, 1: 1.0}, dict.fromkeys(range(16), 1.0), {}, {}):
        machine.run(LOOK_S, busy)
        found.append(neighbours.threads())
    assert found == [16, 14, 1, 16, 16]


def test_the_file_is_read_four_times_a_second_at_most(machine: Machine) -> None:
    """Guards the cost of a pass, of which there may be thousands a second."""
    neighbours = machine.neighbours(16)
    neighbours.threads()
    for _ in range(3):
        machine.run(SAMPLE_S / 4, dict.fromkeys(range(16), 1.0))
        assert neighbours.threads() == 16
    machine.run(SAMPLE_S / 4, dict.fromkeys(range(16), 1.0))
    assert neighbours.threads() == 1
    machine.run(SAMPLE_S / 2, {})
    machine.stat.unlink()
    assert neighbours.threads() == 1


@pytest.mark.parametrize(
    "content",
    [None, "", "nonsense\n", "cpu0 1 2\n", "cpu0 a b c d e f g h\n", "\xff\xfe"],
    ids=["missing", "empty", "words", "short", "letters", "bytes"],
)
def test_where_the_system_does_not_say_nothing_changes(
    machine: Machine, content: str | None
) -> None:
    """Guards macOS and closed containers: the answer is the setting, and no error."""
    neighbours = machine.neighbours(16)
    for _ in range(3):
        if content is None:
            machine.stat.unlink(missing_ok=True)
        else:
            machine.stat.write_text(content, encoding="latin-1")
        machine.now += LOOK_S
        assert neighbours.threads() == 16


def test_a_file_that_comes_and_goes_is_looked_at_when_it_is_there(machine: Machine) -> None:
    """Guards the difference of two looks: it is taken over the time between them."""
    neighbours = machine.neighbours(16)
    neighbours.threads()
    machine.stat.unlink()
    machine.now += LOOK_S
    assert neighbours.threads() == 16
    machine.run(LOOK_S, {0: 2.0, 1: 2.0, 2: 2.0, 3: 2.0})
    assert neighbours.threads() == 12


def test_where_cores_have_no_numbers_all_of_them_count(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards systems that do not say which cores are ours; the sum line is not one of them."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    assert threads_beside(machine, 16, {0: 1.0, 9: 1.0, 15: 1.0}) == 13


def test_this_machine_says_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the real file and clocks: an answer within the bounds, whoever is busy."""
    clock = iter(range(0, 40, 2))
    monkeypatch.setattr(neighbours, "perf_counter", lambda: float(next(clock)))
    measured = Neighbours(2)
    for _ in range(5):
        assert measured.threads() in (1, 2)


@pytest.mark.parametrize(
    ("cores", "hogs", "expected"),
    [
        *((2, 0, {2}), (2, 1, {1}), (2, 2, {1}), (2, 4, {1})),
        *((16, 0, {16}), (16, 1, {15}), (16, 4, {12}), (16, 8, {8}), (16, 15, {2, 3})),
        *((16, 16, {1, 2}), (16, 64, {1}), (64, 32, {32}), (64, 64, {4, 5})),
    ],
)
def test_threads_settle_beside_processes_that_want_whole_cores(
    allow: Callable[..., Machine], cores: int, hogs: int, expected: set[int]
) -> None:
    """Guards the whole loop: what others use depends on what we leave them, and back."""
    machine = allow(cores)
    neighbours = machine.neighbours(cores)
    seen = []
    for _ in range(30):
        threads = neighbours.threads()
        # Everyone who wants a core gets the same part of one.
        part = min(1.0, cores / (threads + hogs))
        machine.own_s += threads * part
        others = dict.fromkeys(range(cores), (hogs * part + threads * part) / cores)
        machine.run(1.0, others)
        neighbours.computed(1.0)
        seen.append(threads)
    assert set(seen[-10:]) <= expected, seen


def test_a_server_that_streams_costs_no_thread(small: Machine) -> None:
    """Guards a quiet machine: short work of the process that started us is not a neighbour."""
    neighbours = small.neighbours(2)
    for _ in range(10):
        small.parent_s += 0.45
        small.own_s += 1.55
        small.run(1.0, {0: 1.0, 1: 1.0})
        neighbours.computed(1.0)
        assert neighbours.threads() == 2


@pytest.mark.parametrize(("busy_now", "threads"), [({}, 2), ({0: 1.0, 1: 1.0}, 1)])
def test_after_a_break_a_short_look_decides(
    small: Machine, busy_now: dict[int, float], threads: int
) -> None:
    """Guards the first prompt after a break: it ran on half of the threads if others had been busy
    meanwhile, and were not any more."""
    neighbours = small.neighbours(2)
    small.busy_now = busy_now
    small.run(20.0, {0: 1.0, 1: 1.0})
    assert neighbours.threads() == threads
