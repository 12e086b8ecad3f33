"""Whether a backend works here: every end of the trial, and what of it is remembered."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from jitney.backends.machine.processor import read_processor
from jitney.backends.trials import remembered, selftest
from jitney.backends.trials.selftest import try_backend
from jitney.backends.trials.trial_process import (
    EXIT_REFUSED,
    NO_END,
    REASON_CHARACTERS_MAX,
    TrialResult,
)
from tests.children_for_tests import WORKS, Children, refuses, stand_in

NUMBERS = {"threads": 2}
DISTRIBUTION = "jitney-stand-in"


@pytest.fixture
def try_it(tmp_path: Path) -> Callable[[], TrialResult]:
    """A trial with a cache folder of its own."""
    return lambda: try_backend("llamacpp", NUMBERS, (), tmp_path / "cache")


def ended(status: int, failure: str) -> TrialResult:
    return TrialResult(failure=failure, status=status)


def memory(tmp_path: Path) -> Path:
    [path] = (tmp_path / "cache" / "probes").glob("*.json")
    return path


def test_one_that_works_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: Callable[[], TrialResult]
) -> None:
    """Guards quick starts, and that the child gets what it is to try."""
    children = stand_in(tmp_path, monkeypatch, llamacpp=WORKS)
    assert [try_it() for _ in range(3)] == [TrialResult()] * 3
    assert children.given == [{"backend": "llamacpp", "numbers": NUMBERS, "parent": os.getpid()}]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (refuses("it is unwell"), ended(EXIT_REFUSED, "it is unwell")),
        ("kill -SEGV $$", ended(-signal.SIGSEGV, "it crashed (SIGSEGV)")),
        ("kill -ILL $$", ended(-signal.SIGILL, "it crashed (SIGILL)")),
        ("kill -ABRT $$", ended(-signal.SIGABRT, "it crashed (SIGABRT)")),
        ("kill -KILL $$", ended(-signal.SIGKILL, "it was killed, probably for lack of memory")),
        (
            "echo Traceback >&2; echo 'no module.' >&2; exit 1",
            ended(1, "it ended with status 1: no module"),
        ),
        ("echo there is no memory.; exit 4", ended(4, "there is no memory")),
        ("echo chatter; exit 7", ended(7, "it ended with status 7")),
        ("exit 3", ended(EXIT_REFUSED, "it ended with status 3")),
    ],
)
def test_every_failure_is_a_clause_and_only_lasting_ones_are_remembered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    try_it: Callable[[], TrialResult],
    script: str,
    expected: TrialResult,
) -> None:
    """Guards both ways: a crash at every start, and a backend given up for a passing lack."""
    children = stand_in(tmp_path, monkeypatch, llamacpp=script)
    assert [try_it(), try_it(), try_it()] == [expected] * 3
    is_lasting = expected.status in (EXIT_REFUSED, -signal.SIGSEGV, -signal.SIGILL, -signal.SIGABRT)
    assert len(children.given) == (1 if is_lasting else 3)


def test_what_fails_for_the_moment_works_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: Callable[[], TrialResult]
) -> None:
    """Guards the end of such a lack: nobody has to clear a folder."""
    stand_in(tmp_path, monkeypatch, llamacpp="kill -KILL $$")
    assert try_it().failure is not None
    stand_in(tmp_path, monkeypatch)
    assert try_it() == TrialResult()


def test_a_trial_that_does_not_end_is_ended_and_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: Callable[[], TrialResult]
) -> None:
    """Guards the start against a library that hangs, and a busy machine against the verdict."""
    monkeypatch.setattr(selftest, "TRY_S_MAX", 0.2)
    stand_in(tmp_path, monkeypatch, llamacpp="exec sleep 60")
    found = try_it()
    assert "did not end within" in (found.failure or "")
    assert not found.would_repeat
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_trial_that_cannot_be_started_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: Callable[[], TrialResult]
) -> None:
    """Guards against a traceback where there is no interpreter to start."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    assert try_it() == ended(NO_END, "it could not be started: No such file or directory")
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_long_reason_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: Callable[[], TrialResult]
) -> None:
    """Guards a sentence against a library that explains itself at length."""
    stand_in(tmp_path, monkeypatch, llamacpp=refuses("a" * 5000))
    assert try_it().failure == "a" * REASON_CHARACTERS_MAX


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"llamacpp": "it is unwell"}',
        b'{"llamacpp": {"found": {}, "failure": "it is unwell"}}',
        b'{"llamacpp": {"found": {}, "failure": 3, "status": 0}}',
        b'{"llamacpp": {"found": {}, "failure": null, "status": "SIGILL"}}',
        b'{"llamacpp": {"found": [], "failure": null, "status": 0}}',
    ],
)
def test_a_memory_that_makes_no_sense_is_tried_again_and_mended(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    try_it: Callable[[], TrialResult],
    content: bytes,
) -> None:
    """Guards against a damaged file that would decide for ever, or be a traceback."""
    children = stand_in(tmp_path, monkeypatch)
    try_it()
    memory(tmp_path).write_bytes(content)
    assert [try_it(), try_it()] == [TrialResult()] * 2
    assert len(children.given) == 2


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: Callable[[], TrialResult]
) -> None:
    """Guards a read-only home: it must not keep anybody from running a model."""
    stand_in(tmp_path, monkeypatch)
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert try_it() == TrialResult()


def write_distribution(folder: Path, *, version: str, record: str) -> None:
    """An installed package, as far as its metadata goes."""
    place = folder / "jitney_stand_in.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    (place / "METADATA").write_text(f"Name: {DISTRIBUTION}\nVersion: {version}\n")
    (place / "RECORD").write_text(record)


def starts_after(children: Children, action: Callable[[], TrialResult]) -> int:
    """How many trials an action needs; the second time none."""
    before = len(children.given)
    action()
    count = len(children.given) - before
    action()
    assert len(children.given) - before == count
    return count


def test_another_build_of_the_library_is_tried_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against an old verdict on a library that was installed or compiled anew."""
    children = stand_in(tmp_path, monkeypatch)
    place = tmp_path / "packages"
    monkeypatch.syspath_prepend(str(place))
    ask = partial(try_backend, "llamacpp", NUMBERS, (DISTRIBUTION,), tmp_path / "cache")
    assert starts_after(children, ask) == 1
    for version, record in (("1.0", "lib,1,1\n"), ("1.1", "lib,1,1\n"), ("1.1", "lib,2,1\n")):
        write_distribution(place, version=version, record=record)
        assert starts_after(children, ask) == 1
    write_distribution(place, version="1.0", record="lib,1,1\n")
    assert starts_after(children, ask) == 0


def test_another_processor_is_tried_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a home that two machines share, and a container that moves."""
    children = stand_in(tmp_path, monkeypatch)
    cpuinfo = tmp_path / "cpuinfo"
    monkeypatch.setattr(remembered, "read_processor", partial(read_processor, cpuinfo))
    ask = partial(try_backend, "llamacpp", NUMBERS, (), tmp_path / "cache")
    for name, flags in (("Fast", "avx2"), ("Fast", "avx2 amx_tile"), ("Faster", "avx2")):
        cpuinfo.write_text(f"model name : {name}\nflags : {flags}\n")
        assert starts_after(children, ask) == 1
    cpuinfo.write_text("model name : Fast\nflags : avx2\n")
    assert starts_after(children, ask) == 0


def test_other_numbers_and_backends_are_tried_for_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the key: that float32 works says nothing of bfloat16."""
    children = stand_in(tmp_path, monkeypatch)
    cache = tmp_path / "cache"
    for name in ("llamacpp", "openvino"):
        for numbers in ({"precision": "f32"}, {"precision": "bf16"}, {}):
            assert starts_after(children, partial(try_backend, name, numbers, (), cache)) == 1
    two = {"a": 1, "b": 2}
    assert starts_after(children, partial(try_backend, "openvino", two, (), cache)) == 1
    turned = dict(reversed(two.items()))
    assert starts_after(children, partial(try_backend, "openvino", turned, (), cache)) == 0
