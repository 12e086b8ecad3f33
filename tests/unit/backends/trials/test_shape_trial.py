"""Trials of shapes: which one is taken, and what is remembered."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: numbers of a shape

import pytest

from jitney.backends.fake import backend
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.backends.trials import invariance, shape_trial
from jitney.backends.trials.shape_trial import Found

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


def test_what_was_found_is_remembered(tmp_path: Path) -> None:
    """Guards later starts: they must not try again, nor take what another trial found."""
    memory = shape_trial.memory_path(tmp_path, ["some", "facts"])
    assert memory != shape_trial.memory_path(tmp_path, ["other", "facts"])
    assert shape_trial.recall(memory, ["on"]) is None
    found = {"on": Found(10.0, FILLED), "off": Found(5.0, None)}
    shape_trial.remember(memory, found, ())
    assert shape_trial.recall(memory, ["on", "off"]) == found


def test_what_may_pass_is_not_remembered(tmp_path: Path) -> None:
    """Guards a start in a bad moment: the next one tries again."""
    memory = shape_trial.memory_path(tmp_path, [])
    shape_trial.remember(memory, {"on": Found(0.0, None, is_lasting=False)}, ())
    assert shape_trial.recall(memory, ["on"]) is None


@pytest.mark.parametrize("kept", ["", "[]", '{"on": {}}', '{"on": {"tokens_per_s": "x"}}'])
def test_damage_is_no_memory(tmp_path: Path, kept: str) -> None:
    """Guards against files that were cut short, or are somebody else's."""
    memory = tmp_path / "memory.json"
    memory.write_text(kept)
    assert shape_trial.recall(memory, ["on"]) is None


def test_the_child_answers_in_one_line(tmp_path: Path) -> None:
    """Guards the way through a process: a backend that cannot be loaded is no verdict."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"nothing")
    found = shape_trial.try_shapes("llamacpp", {"model": str(model)}, [FILLED], 0)
    assert found == Found(0.0, None, is_lasting=False)
