"""How many replicas a load needs: a pure function of what the replicas report.

Ray Serve calls it (`jitney_cluster.on_ray.needed_replicas`) and waits before it follows it, so that
a burst or a pause changes nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

BUSY_SHARE = 0.8
"""Replicas are added when more than this share of all slots is taken: a new one takes a while."""

WAIT_S_MAX = 1.0
"""One more replica where a request waits longer than this for a slot."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """A replica's slots, the sequences that run or wait there, and how long a new one would wait.

    Numbers only: Serve keeps them as means over some seconds.
    """

    slot_count: float
    taken_count: float
    wait_s: float


def needed_count(loads: Sequence[ReplicaLoad], count: int) -> int:
    """How many replicas these loads need; `count` are there or are being started.

    Of these the ones without a report still load their model, or have just done so.
    """
    slots = sum(each.slot_count for each in loads)
    if slots <= 0:
        return count
    each_slots = slots / len(loads)
    taken = sum(each.taken_count for each in loads)
    needed = math.ceil(taken / (BUSY_SHARE * each_slots))
    if min(each.wait_s for each in loads) > WAIT_S_MAX:
        # Even the best replica keeps a newcomer waiting. One that is coming may be all it takes.
        is_coming = len(loads) < count
        needed = max(needed, count if is_coming else count + 1)
    return max(1, needed)
