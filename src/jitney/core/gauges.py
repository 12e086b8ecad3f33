"""A frozen picture of the scheduler at one moment, for statistics and for people to look at."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from jitney.core.prefix import Holding
from jitney.core.request import RequestId


class SlotState(StrEnum):
    """What a slot is doing, derived from tokens known and tokens computed."""

    PREFILLING = "prefilling"
    GENERATING = "generating"
    CACHED = "cached"


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot that holds something; slots that are not listed are idle."""

    slot: int
    state: SlotState
    request_id: RequestId | None
    index: int | None
    token_count: int


@dataclass(frozen=True, slots=True)
class Occupant:
    """Who runs in a slot."""

    request_id: RequestId
    index: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """Levels and counters. Tokens of memory are whole blocks, shared ones once."""

    running_count: int
    waiting_count: int
    waiting_tokens: int
    deferred_count: int
    """Of the waiting, those who wait for a prefix, a group or a trial rather than for room."""
    kv_tokens: int
    kv_used: int
    kv_cached: int
    slots: tuple[SlotView, ...]
    counters: Mapping[str, int]


def view_slots(holdings: Mapping[int, Holding]) -> tuple[SlotView, ...]:
    """What every slot that holds something is doing, by slot."""
    views = []
    for slot, holding in sorted(holdings.items()):
        sequence = holding.sequence
        if sequence is None:
            views.append(SlotView(slot, SlotState.CACHED, None, None, holding.length))
            continue
        state = SlotState.GENERATING if sequence.wanted_count <= 1 else SlotState.PREFILLING
        request_id, index = sequence.request.id, sequence.index
        views.append(SlotView(slot, state, request_id, index, sequence.computed))
    return tuple(views)
