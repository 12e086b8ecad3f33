"""Tests of `jitney.core.value`."""

from dataclasses import FrozenInstanceError, replace

import pytest

from jitney.core.batch import Entry
from jitney.core.events import StartEvent
from jitney.core.request import RequestId


def test_a_value_is_compared_hashed_and_replaced_as_a_frozen_dataclass_is() -> None:
    """Guards batches: they are compared, and stand in sets."""
    entry = Entry(1, 0, (5, 6), wants_token=True)
    assert entry == Entry(1, 0, (5, 6), True, False) != replace(entry, slot=2)
    assert len({entry, Entry(1, 0, (5, 6), True)}) == 1
    assert (entry.length, entry.end) == (2, 2)
    assert not hasattr(entry, "__dict__")


def test_what_exists_once_for_a_sequence_is_frozen_by_python() -> None:
    """Guards the exception: only what exists once for a token is left to the type checker."""
    event = StartEvent(RequestId("a"), 0, 0.0, 0)
    with pytest.raises(FrozenInstanceError):
        event.index = 1  # type: ignore[misc]
