"""What the child of a trial does with a loaded backend."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: numbers of a shape

import pytest

from jitney.backends.fake import backend
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.backends.trials import trial_child
from jitney.backends.trials.trial import CHILD, SHAPE_SLOTS, payload_of
from jitney.backends.trials.trial_process import ask

FILLED, BARE = {"rows_group": 4, "decodes_differ": True}, {"decodes_differ": True}


class Shaped(FakeBackend):
    """Fills its passes only if its shape says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(FakeSettings(slots=SHAPE_SLOTS, rounds=True))
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
    found = trial_child.try_model(backend, 0, [BARE, FILLED, {"rows_group": 8}])
    assert found["shape"] == FILLED
    assert backend.used == [BARE, FILLED, FILLED]


def test_without_a_shape_the_speed_is_that_of_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards machines on which nothing helps: they are told so."""
    backend = Shaped(monkeypatch)
    found = trial_child.try_model(backend, 1, [BARE])
    assert found["shape"] is None
    assert isinstance(found["tokens_per_s"], float)
    assert found["tokens_per_s"] > 0
    assert backend.used == [BARE, {}]


def test_a_prompt_is_computed_where_nothing_else_is_to_be_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the trial of kernels: a model that only loads was not tried."""
    backend = Shaped(monkeypatch)
    assert trial_child.try_model(backend, 0) == {"tokens_per_s": 0.0, "shape": None}
    assert backend.tokens_of(0)
    assert backend.used == []


def test_a_backend_that_cannot_be_loaded_has_no_shape(tmp_path: Path) -> None:
    """Guards the way through a process: a backend that cannot be loaded is no verdict."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"nothing")
    values = {"model": str(model), "max_num_batched_tokens": 8}
    found = ask(CHILD, payload_of("llamacpp", values, shapes=[FILLED]), 100.0)
    assert found.failure is not None
    assert found.found == {}
