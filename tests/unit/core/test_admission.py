"""Whether there is room for one more: the quick answer and the long one, over simulated engines."""

import pytest

from jitney.core.admission import Admission
from jitney.core.prefix import Match
from jitney.core.sequence import Sequence
from tests.simulation.simulator import Simulation
from tests.simulation.world import draw_world


def test_who_has_ample_memory_has_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards running sequences against newcomers that the quick look lets in too early."""
    has_memory, is_ample = Admission.has_memory, Admission._is_ample
    ample: list[bool] = []
    seen: set[tuple[bool, bool]] = set()

    def noted(self: Admission, blocks: int) -> bool:
        ample.append(is_ample(self, blocks))
        return False

    def watched(self: Admission, sequence: Sequence, match: Match) -> bool:
        has_room = has_memory(self, sequence, match)
        seen.add((ample.pop(), has_room))
        return has_room

    monkeypatch.setattr(Admission, "_is_ample", noted)
    monkeypatch.setattr(Admission, "has_memory", watched)
    for seed in (0, 2, 3, 8):
        Simulation(draw_world(seed)).run()
    assert {(True, True), (False, False)} <= seen
    assert (True, False) not in seen
