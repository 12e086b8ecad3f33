"""Trials of backends: every end of a child, and what of it is remembered."""

import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.kinds import kind_of
from jitney.backends.trials import trial
from jitney.backends.trials.trial import (
    SHAPE_SLOT_TOKENS,
    SHAPE_SLOTS,
    SLOT_TOKENS,
    Trial,
    TrialResults,
    alike_values,
    have_shapes,
    payload_of,
    try_backend,
)
from jitney.backends.trials.trial_process import (
    EXIT_REFUSED,
    NO_END,
    REASON_CHARACTERS_MAX,
    TrialResult,
)
from jitney.config import Settings
from jitney.config.settings import BatchInvariant
from jitney.errors import ConfigError
from jitney.models.files import SMALL_BYTES_MAX
from tests.children_for_tests import WORKS, Children, refuses, stand_in

NUMBERS = {"threads": 2}
DISTRIBUTION = "jitney-stand-in"


TryIt = Callable[[], TrialResult]


@pytest.fixture
def try_it(tmp_path: Path) -> TryIt:
    """A trial with a cache folder of its own."""
    return lambda: try_backend("llamacpp", NUMBERS, (), tmp_path / "cache")


def ended(status: int, failure: str) -> TrialResult:
    return TrialResult(failure=failure, status=status)


def test_one_that_works_is_tried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: TryIt
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
    try_it: TryIt,
    script: str,
    expected: TrialResult,
) -> None:
    """Guards both ways: a crash at every start, and a backend given up for a passing lack."""
    children = stand_in(tmp_path, monkeypatch, llamacpp=script)
    assert [try_it(), try_it(), try_it()] == [expected] * 3
    is_lasting = expected.status in (EXIT_REFUSED, -signal.SIGSEGV, -signal.SIGILL, -signal.SIGABRT)
    assert len(children.given) == (1 if is_lasting else 3)


def test_a_trial_that_does_not_end_is_ended_and_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: TryIt
) -> None:
    """Guards the start against a library that hangs, and a busy machine against the verdict."""
    monkeypatch.setattr(trial, "START_S_MAX", 0.2)
    monkeypatch.setattr(trial, "SHAPE_S_MAX", 0.0)
    stand_in(tmp_path, monkeypatch, llamacpp="exec sleep 60")
    found = try_it()
    assert "did not end within" in (found.failure or "")
    assert not found.would_repeat
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_trial_that_cannot_be_started_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: TryIt
) -> None:
    """Guards against a traceback where there is no interpreter to start."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    assert try_it() == ended(NO_END, "it could not be started: No such file or directory")
    assert not list((tmp_path / "cache").rglob("*.json"))


def test_a_long_reason_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: TryIt
) -> None:
    """Guards a sentence against a library that explains itself at length."""
    stand_in(tmp_path, monkeypatch, llamacpp=refuses("a" * 5000))
    assert try_it().failure == "a" * REASON_CHARACTERS_MAX


def test_a_cache_that_cannot_be_written_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, try_it: TryIt
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


def starts_after(children: Children, action: TryIt) -> int:
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: Path
) -> None:
    """Guards a home that two machines share, and a container that moves."""
    children = stand_in(tmp_path, monkeypatch)
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


VALUES = {"model": "/nowhere/model", "slots": 99, "kv_tokens": 10**6, "max_num_batched_tokens": 8}


@pytest.mark.parametrize("shapes", [None, [], [{"rows_min": 2}]])
def test_a_child_gets_the_memory_that_it_needs(shapes: list[dict[str, Any]] | None) -> None:
    """Guards large settings: a trial must not take gigabytes, and keeps the layout."""
    slots, tokens = (4, SLOT_TOKENS) if shapes is None else (SHAPE_SLOTS, SHAPE_SLOT_TOKENS)
    sizes = {"slots": slots, "kv_tokens": slots * tokens, "max_num_batched_tokens": tokens}
    for layout in ({}, {"slot_tokens_max": 0}, {"slot_tokens_max": 4096}):
        payload = payload_of("llamacpp", VALUES | layout, sequences=4, shapes=shapes)
        own = {"slot_tokens_max": tokens} if layout.get("slot_tokens_max") else layout
        assert payload["settings"] == VALUES | sizes | own
        assert (payload["backend"], payload["sequences"]) == ("llamacpp", 4)
        assert payload.get("shapes") == shapes


NAMES = ("openvino", "llamacpp")


def speed(tokens_per_s: float) -> TrialResult:
    return TrialResult(found={"tokens_per_s": tokens_per_s})


def all_fast(results: TrialResults) -> bool:
    return all(each.speed or each.failure for each in results.values())


def speeds(cache: Path, *facts: object, names: tuple[str, ...] = NAMES) -> Trial:
    return Trial(
        cache=cache, names=names, facts=facts, distributions=(), keeps=all_fast, measures=True
    )


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        ("""echo loading; echo; echo '{"tokens_per_s": 2.0}'""", None),
        ("exit 0", "it ended without a figure"),
        ("echo 12; exit 0", "it ended without a figure"),
        ("""echo '{"tokens_per_s": -1.0}'""", "it ended without a figure"),
        ("""echo '{"tokens_per_s": NaN}'""", "it ended without a figure"),
        ("kill -SEGV $$", "it crashed (SIGSEGV)"),
    ],
)
def test_a_speed_is_a_figure_whatever_a_library_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, failure: str | None
) -> None:
    """Guards against chatty native code, and against a figure that is none."""
    stand_in(tmp_path, monkeypatch, llamacpp=script)
    one = speeds(tmp_path / "cache", names=("llamacpp",))
    found = one.results({"llamacpp": payload_of("llamacpp", VALUES, sequences=1)})["llamacpp"]
    assert (found.failure, found.speed) == (failure, 0.0 if failure else 2.0)


def test_results_are_remembered(tmp_path: Path) -> None:
    """Guards the second start: figures and failures come back as they were."""
    once = speeds(tmp_path, "facts", 1)
    assert once.file != speeds(tmp_path, "facts", 2).file
    assert once.recall() is None
    found = {
        "openvino": speed(12.5),
        "llamacpp": TrialResult(failure="it crashed (SIGILL)", status=-signal.SIGILL),
    }
    assert once.results(found) == found
    assert once.recall() == found
    assert once.results({}) == found
    names = {path.name for path in once.file.parent.iterdir()}
    assert names == {once.file.name, "measuring.lock"}


GOOD = asdict(speed(1.5))


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"nonsense", b"\xff\xfe", b"[]", b"{}", b"7"),
        json.dumps({"openvino": GOOD, "llamacpp": GOOD | {"failure": 3}}).encode(),
        json.dumps({"openvino": GOOD, "llamacpp": GOOD | {"status": "SIGILL"}}).encode(),
        json.dumps({"openvino": GOOD}).encode(),
        json.dumps({"openvino": GOOD, "llamacpp": GOOD}).encode() + b" " * SMALL_BYTES_MAX,
        json.dumps({"openvino": GOOD, "llamacpp": 3}).encode(),
        json.dumps({"openvino": GOOD, "llamacpp": GOOD | {"found": "9"}}).encode(),
        *(
            json.dumps({"openvino": GOOD, "llamacpp": asdict(speed(each))}).encode()
            for each in (0.0, -1.0, math.inf, math.nan)
        ),
    ],
)
def test_results_that_make_no_sense_are_none(tmp_path: Path, content: bytes) -> None:
    """Guards against a damaged file that would decide for ever: it is tried again, and mended."""
    once = speeds(tmp_path)
    once.file.parent.mkdir()
    once.file.write_bytes(content)
    assert once.recall() is None
    found = dict.fromkeys(NAMES, speed(2.0))
    assert once.results(found) == once.recall() == found


@pytest.mark.parametrize(
    ("result", "has"),
    [
        (TrialResult(found={"tokens_per_s": 10.0, "shape": {"rows_min": 2}}), True),
        (TrialResult(found={"tokens_per_s": 5.0, "shape": None}), True),
        (TrialResult(failure="it crashed (SIGSEGV)", status=-11), False),
        (TrialResult(), False),
        (TrialResult(found={"tokens_per_s": 1.0}), False),
    ],
)
def test_only_shapes_that_were_found_are_remembered(result: TrialResult, has: bool) -> None:
    """Guards a start in a bad moment: the next one tries again."""
    assert have_shapes({"on": result}) == has


@pytest.mark.parametrize("asked", ["on", "auto"])
def test_a_trial_that_ended_early_says_why(
    asked: BatchInvariant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards whoever has a damaged file from being told that texts are not equal with it."""
    stand_in(tmp_path, monkeypatch, openvino=refuses("a shard is cut short."))
    settings = Settings(batch_invariant=asked, cache_dir=tmp_path / "cache")
    values: dict[str, int | bool | str] = {"max_num_batched_tokens": 8}
    if asked == "on":
        with pytest.raises(ConfigError) as caught:
            alike_values(kind_of("openvino"), settings, values, [{}], ())
        said = str(caught.value)
    else:
        assert alike_values(kind_of("openvino"), settings, values, [{}], ()) == {}
        said = caplog.text
    assert "the trial ended: a shard is cut short" in said
    assert "no trial found" not in said
