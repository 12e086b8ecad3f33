"""The trial of a backend: what it computes, how it fails, what is remembered."""

import json
import math
import signal
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.trials import measure
from jitney.backends.trials.remembered import Trial, TrialResults, builds
from jitney.backends.trials.trial_process import TrialResult

NAMES = ("openvino", "llamacpp")
FAKE = {"slots": 8, "kv_tokens": 2048, "model_len_max": 512, "max_num_batched_tokens": 256}


def speed(tokens_per_s: float) -> TrialResult:
    return TrialResult(found={"tokens_per_s": tokens_per_s})


def trial(cache: Path, *facts: object, names: tuple[str, ...] = NAMES) -> Trial:
    return Trial(
        cache=cache,
        names=names,
        facts=facts,
        distributions=(),
        keeps=measure.is_settled,
        measures=True,
    )


def fake_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a shell script stand for the child."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\ncat > {tmp_path}/given\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(path))


def settings(tmp_path: Path, **more: Any) -> dict[str, Any]:  # Any: of every setting's type
    return FAKE | {"model": str(tmp_path / "model")} | more


@pytest.mark.parametrize("sequences", [1, 3, 8])
def test_a_trial_gives_a_speed(sequences: int) -> None:
    """The backend accepts every batch of the course, and the figure is a number."""
    speed = measure.run_trial("fake", FAKE, sequences)
    assert math.isfinite(speed)
    assert speed > 0


def test_a_model_of_short_sequences_is_tried_all_the_same() -> None:
    """Guards against batches that are longer than the model allows."""
    assert measure.run_trial("fake", FAKE | {"model_len_max": 20}, 2) > 0


def test_where_prompts_take_long_most_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the bound on time with large models: copied prompts are continued like others."""
    monkeypatch.setattr(measure, "PREFILL_S", 0.0)
    assert measure.run_trial("fake", FAKE, 4) > 0


def test_the_child_is_given_the_memory_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards large settings: a trial must not take gigabytes, and keeps the layout."""
    fake_child(tmp_path, monkeypatch, """echo '{"tokens_per_s": 12.5}'""")
    own = settings(
        tmp_path, slots=99, kv_tokens=10**6, slot_tokens_max=4096, max_num_batched_tokens=8
    )
    assert measure.measure("llamacpp", own, 4) == speed(12.5)
    given = json.loads((tmp_path / "given").read_text())
    assert given["backend"] == "llamacpp"
    assert given["sequences"] == 4
    assert given["settings"] == own | {
        "slots": 4,
        "kv_tokens": 4 * measure.SLOT_TOKENS,
        "slot_tokens_max": measure.SLOT_TOKENS,
        "max_num_batched_tokens": measure.PROMPT_TOKENS,
    }
    measure.measure("llamacpp", own | {"slot_tokens_max": 0}, 4)
    given = json.loads((tmp_path / "given").read_text())
    assert given["settings"]["slot_tokens_max"] == 0


def test_what_a_library_prints_does_not_hide_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against chatty native code."""
    fake_child(tmp_path, monkeypatch, """echo loading; echo; echo '{"tokens_per_s": 2.0}'""")
    assert measure.measure("llamacpp", settings(tmp_path), 1) == speed(2.0)


@pytest.mark.parametrize(
    ("script", "told", "is_lasting"),
    [
        ("kill -SEGV $$", "SIGSEGV", True),
        ("kill -ILL $$", "SIGILL", True),
        ("kill -KILL $$", "lack of memory", False),
        ("echo the model is unwell.; exit 3", "the model is unwell", False),
        ("echo no module >&2; exit 1", "status 1: no module", False),
        ("exit 0", "without a figure", True),
        ("echo 12; exit 0", "without a figure", True),
        ("""echo '{"tokens_per_s": -1.0}'""", "without a figure", True),
        ("""echo '{"tokens_per_s": NaN}'""", "without a figure", True),
    ],
)
def test_every_failure_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str, is_lasting: bool
) -> None:
    """A crash in the child must never become one here."""
    fake_child(tmp_path, monkeypatch, script)
    found = measure.measure("openvino", settings(tmp_path), 1)
    assert not measure.speed_of(found)
    assert told in (found.failure or "")
    assert measure.is_settled({"openvino": found, "llamacpp": speed(1.0)}) == is_lasting


def test_a_child_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the start against a library that hangs."""
    monkeypatch.setattr(measure, "START_S_MAX", 0.2)
    fake_child(tmp_path, monkeypatch, "exec sleep 60")
    found = measure.measure("openvino", settings(tmp_path), 1)
    assert "did not end within" in (found.failure or "")


def test_a_child_that_cannot_be_started_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards frozen programs, which have no interpreter to start."""
    monkeypatch.setattr("sys.executable", str(tmp_path / "none"))
    found = measure.measure("openvino", settings(tmp_path), 1)
    assert "could not be started" in (found.failure or "")


def test_trials_are_remembered(tmp_path: Path) -> None:
    """Guards the second start: figures and failures come back as they were."""
    once = trial(tmp_path, "facts", 1)
    assert once.file != trial(tmp_path, "facts", 2).file
    assert once.recall() is None
    found = {
        "openvino": speed(12.5),
        "llamacpp": TrialResult(failure="it crashed (SIGILL)", status=-signal.SIGILL),
    }
    assert once.results(lambda: found) == found
    assert once.recall() == found
    assert once.results(dict) == found
    names = {path.name for path in once.file.parent.iterdir()}
    assert names == {once.file.name, "measuring.lock"}


GOOD = asdict(speed(1.5))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff\xfe",
        json.dumps({"openvino": GOOD}).encode(),
        json.dumps({"openvino": GOOD, "llamacpp": 3}).encode(),
        json.dumps({"openvino": GOOD, "llamacpp": {"found": {"tokens_per_s": 9.0}}}).encode(),
        json.dumps({"openvino": GOOD, "llamacpp": GOOD | {"found": "9"}}).encode(),
        json.dumps({"openvino": GOOD, "llamacpp": GOOD | {"found": {}}}).encode(),
        *(
            json.dumps({"openvino": GOOD, "llamacpp": asdict(speed(each))}).encode()
            for each in (0.0, -1.0, math.inf, math.nan)
        ),
        json.dumps({name: GOOD | {"found": {}, "failure": "x"} for name in NAMES}).encode(),
        json.dumps({"openvino": GOOD, "llamacpp": GOOD, "more": "x" * 70_000}).encode(),
    ],
)
def test_a_memory_that_makes_no_sense_is_none(tmp_path: Path, content: bytes) -> None:
    """Guards against damaged files: they are measured again."""
    once = trial(tmp_path)
    once.file.parent.mkdir()
    once.file.write_bytes(content)
    assert once.recall() is None


def test_a_cache_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    """A read-only home must not keep anybody from running a model."""
    cache = tmp_path / "cache"
    cache.write_text("a file where the folder should be")
    once = trial(cache, names=("openvino",))
    found: TrialResults = {"openvino": speed(1.0)}
    assert once.results(lambda: found) == found
    assert once.recall() is None


def test_a_distribution_is_known_by_version_and_content() -> None:
    """Guards a rebuilt library: the same version from another compiler has another speed."""
    [[name, version, digest], missing] = builds(("numpy", "no-such-thing"))
    assert name == "numpy"
    assert version[0].isdigit()
    assert len(digest) == 64
    assert missing == ["no-such-thing"]
