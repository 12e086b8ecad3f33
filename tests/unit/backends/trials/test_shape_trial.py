"""Trials of shapes: which one is taken, and what is remembered."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: numbers of a shape

import pytest

from jitney.backends.fake import backend
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.backends.trials import invariance, shape_trial
from jitney.backends.trials.shape_trial import ShapeMemory, ShapeTrial, try_shapes
from jitney.backends.trials.trial_process import TrialResult

FILLED, BARE = {"rows_group": 4, "decodes_differ": True}, {"decodes_differ": True}


class Shaped(FakeBackend):
    """Fills its passes only if its shape says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(FakeSettings(slots=invariance.SLOTS, rounds=True))
        self.used: list[dict[str, Any]] = []
        self._group = 1
        monkeypatch.setattr(backend, "rows_missing", lambda rows, group: -rows % self._group)

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        """Fill up to this group from here on."""
        self.used.append(dict(shape))
        self._group = shape.get("rows_group", 1)


def test_the_first_shape_that_is_alike_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the order: the cheapest comes first, and what comes later is not tried."""
    backend = Shaped(monkeypatch)
    found = shape_trial.run_trial(backend, [BARE, FILLED, {"rows_group": 8}], 0)
    assert found["shape"] == FILLED
    assert backend.used == [BARE, FILLED, FILLED]


def test_without_a_shape_the_speed_is_that_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards machines on which nothing helps: they are told so."""
    backend = Shaped(monkeypatch)
    found = shape_trial.run_trial(backend, [BARE], 1)
    assert found["shape"] is None
    assert isinstance(found["tokens_per_s"], float)
    assert found["tokens_per_s"] > 0
    assert backend.used == [BARE, {}]


def memory(folder: Path, *facts: object) -> ShapeMemory:
    return ShapeMemory(cache=folder, facts=facts, distributions=(), notice="trying shapes")


def tried(model: Path, *shapes: Mapping[str, Any]) -> ShapeTrial:
    settings = {"model": str(model), "max_num_batched_tokens": 8}
    return ShapeTrial(backend="llamacpp", settings=settings, shapes=shapes)


def let_answer(monkeypatch: pytest.MonkeyPatch, *answers: TrialResult) -> None:
    """What the next children find."""
    left = list(answers)
    monkeypatch.setattr(shape_trial, "ask", lambda *given: left.pop(0))


FOUND = TrialResult(found={"tokens_per_s": 10.0, "shape": FILLED})
NOTHING = TrialResult(found={"tokens_per_s": 5.0, "shape": None})


def test_what_was_found_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards later starts: they must not try again, nor take what another trial found."""
    trials = {"on": tried(tmp_path, FILLED), "off": tried(tmp_path, BARE)}
    let_answer(monkeypatch, FOUND, NOTHING, NOTHING, FOUND, NOTHING, NOTHING)
    for _ in range(3):
        found = try_shapes(trials, memory(tmp_path, "some facts"))
        assert found == {"on": FOUND, "off": NOTHING}
    assert try_shapes(trials, memory(tmp_path, "other facts")) == {"on": NOTHING, "off": FOUND}
    others = trials | {"off": tried(tmp_path, FILLED)}
    assert try_shapes(others, memory(tmp_path, "some facts")) == {"on": NOTHING, "off": NOTHING}


@pytest.mark.parametrize(
    "answer",
    [
        TrialResult(failure="it crashed (SIGSEGV)", status=-11),
        TrialResult(failure="it was killed", status=-9),
        TrialResult(),
        TrialResult(found={"tokens_per_s": "x", "shape": None}),
        TrialResult(found={"tokens_per_s": 1.0}),
        TrialResult(found={"tokens_per_s": 1.0, "shape": 3}),
    ],
)
def test_what_may_pass_is_not_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: TrialResult
) -> None:
    """Guards a start in a bad moment: the next one tries again."""
    let_answer(monkeypatch, answer, FOUND)
    trials = {"on": tried(tmp_path, FILLED)}
    assert try_shapes(trials, memory(tmp_path)) == {"on": answer}
    assert try_shapes(trials, memory(tmp_path)) == {"on": FOUND}


@pytest.mark.parametrize("kept", ["", "[]", '{"on": {}}', '{"on": {"tokens_per_s": "x"}}'])
def test_damage_is_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str) -> None:
    """Guards against files that were cut short, or are somebody else's."""
    let_answer(monkeypatch, NOTHING, FOUND)
    trials = {"on": tried(tmp_path, FILLED)}
    try_shapes(trials, memory(tmp_path))
    [file] = (tmp_path / "probes").glob("*.json")
    file.write_text(kept)
    assert try_shapes(trials, memory(tmp_path)) == {"on": FOUND}


def test_a_backend_that_cannot_be_loaded_has_no_shape(tmp_path: Path) -> None:
    """Guards the way through a process: a backend that cannot be loaded is no verdict."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"nothing")
    found = tried(model, FILLED).run()
    assert found.failure is not None
    assert found.found == {}
