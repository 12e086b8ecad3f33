"""How the scheduler stands at one moment, in numbers: for statistics, after every turn.

Made from counts and from those who run, never from all slots: a turn must not cost more because
many slots are kept for their prefixes. What each slot does is in the picture.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jitney.core.cost import Fit
from jitney.core.request import RequestId


@dataclass(frozen=True, slots=True)
class Occupant:
    """Who runs in a slot."""

    request_id: RequestId
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """Levels and counters. Tokens of memory are whole blocks, shared ones once."""

    running_count: int
    prefilling_count: int
    """Of the running, those who have more to compute than the token that they made last."""
    waiting_count: int
    paused_count: int
    """Those whose caller paused them; they are not among the waiting."""
    waiting_tokens: int
    deferred_count: int
    """Of the waiting, those who wait for a prefix, window, group, trial or share, not for room."""
    cached_count: int
    """Slots in which nobody runs, kept for their prefixes."""
    kv_tokens: int
    kv_used: int
    kv_cached: int
    slot_count: int
    """Sequences that may run at once."""
    fit: Fit | None
    """What a tick of decodes takes; None while there was none."""
    counters: Mapping[str, int]

    @property
    def live_count(self) -> int:
        """Sequences that have not ended."""
        return self.running_count + self.waiting_count + self.paused_count

    @property
    def is_work_due(self) -> bool:
        """Whether a forward pass is expected: not while all are paused, or are being gathered."""
        return self.running_count > 0 or self.waiting_count > self.deferred_count
