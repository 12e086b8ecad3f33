"""Whether differences between ways of computing are seen, with pretended kernels that round."""

import pytest

from jitney.backends.fake import backend
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.backends.trials import invariance
from jitney.backends.trials.trial import SHAPE_SLOTS


@pytest.fixture
def rounding() -> FakeBackend:
    return FakeBackend(FakeSettings(slots=SHAPE_SLOTS, rounds=True))


def test_a_backend_that_fills_its_passes_is_alike(rounding: FakeBackend) -> None:
    """Guards the verdict: no way of computing looks different where none is."""
    assert invariance.is_invariant(rounding, decodes_differ=True)
    assert rounding.used_tokens == 0


def test_generated_tokens_in_a_span_are_seen(rounding: FakeBackend) -> None:
    """Guards recomputation: it may be done in spans only where that is alike."""
    assert not invariance.is_invariant(rounding, decodes_differ=False)
    exact = FakeBackend(FakeSettings(slots=SHAPE_SLOTS))
    assert invariance.is_invariant(exact, decodes_differ=False)


def test_passes_that_are_not_filled_are_seen(
    rounding: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a trial that finds nothing: neighbours change the number of rows."""
    monkeypatch.setattr(backend, "rows_missing", lambda rows, group: 0)
    assert not invariance.is_invariant(rounding, decodes_differ=True)


def test_lone_tokens_are_seen(rounding: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the pieces: one of them is a single token."""
    monkeypatch.setattr(backend, "is_lone", lambda entry, prompt_count: False)
    assert not invariance.is_invariant(rounding, decodes_differ=True)
