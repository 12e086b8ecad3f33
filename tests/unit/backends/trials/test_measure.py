"""The speed of a backend: it takes every batch of the measurement, and the figure is a number."""

import math

import pytest

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.backends.trials import measure
from jitney.backends.trials.measure import SpeedMeasurement


def measured(sequences: int, model_len_max: int = 512) -> float:
    settings = FakeSettings(
        slots=8, kv_tokens=2048, model_len_max=model_len_max, max_num_batched_tokens=256
    )
    return SpeedMeasurement(FakeBackend(settings), sequences).speed()


@pytest.mark.parametrize("sequences", [1, 3, 8])
def test_a_measurement_gives_a_speed(sequences: int) -> None:
    """The backend accepts every batch of the course, and the figure is a number."""
    assert math.isfinite(measured(sequences))
    assert measured(sequences) > 0


def test_a_model_of_short_sequences_is_measured_all_the_same() -> None:
    """Guards against batches that are longer than the model allows."""
    assert measured(2, model_len_max=20) > 0


def test_where_prompts_take_long_most_are_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the bound on time with large models: copied prompts are continued like others."""
    monkeypatch.setattr(measure, "PREFILL_S", 0.0)
    assert measured(4) > 0
