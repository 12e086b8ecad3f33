"""How many replicas a load needs."""

import pytest

from jitney_cluster.replica_count import ReplicaLoad, needed_count

IDLE = ReplicaLoad(slot_count=10, taken_count=0, wait_s=0.0)
HALF = ReplicaLoad(slot_count=10, taken_count=5, wait_s=0.0)
FULL = ReplicaLoad(slot_count=10, taken_count=10, wait_s=0.0)
SHORT = ReplicaLoad(slot_count=10, taken_count=4, wait_s=3.0)
"""Short of memory, not of slots."""
LATE = ReplicaLoad(slot_count=10, taken_count=10, wait_s=3.0)


@pytest.mark.parametrize(
    ("loads", "count", "wanted"),
    [
        ([IDLE], 1, 1),
        ([HALF], 1, 1),
        ([FULL], 1, 2),
        ([ReplicaLoad(10, 40, 0.5)], 1, 5),
        ([HALF, HALF, HALF], 3, 2),
        ([IDLE, IDLE, IDLE], 3, 1),
        ([FULL, FULL], 3, 3),
        # One that waits has a better neighbour; if all wait, one more is needed.
        ([LATE, IDLE], 2, 2),
        ([LATE, LATE], 2, 3),
        # Nothing is known of those that load their model, and they may be all it takes.
        ([LATE, LATE], 3, 3),
        ([LATE, LATE], 4, 4),
        ([SHORT], 1, 2),
        ([SHORT], 2, 2),
        # Slots that are taken are counted, whoever is coming.
        ([ReplicaLoad(10, 40, 3.0)], 2, 5),
        ([HALF], 3, 1),
        ([], 2, 2),
    ],
)
def test_slots_and_waits_decide(loads: list[ReplicaLoad], count: int, wanted: int) -> None:
    assert needed_count(loads, count) == wanted
