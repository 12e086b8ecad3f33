"""That the simulation finds bugs: a few planted ones here, all of them by `make plant`."""

import pytest

from tests.simulation.plant import catch, missing
from tests.simulation.plants import OF_THE_PSEUDO_CODE, PLANTS

QUICK = (
    "the budget is exceeded by one",
    "a finish is told twice",
    "the draw depends on the slot",
    "a tenant may run one more than its share",
    "a paused request that runs goes on",
    "a moved request begins again",
    "a request may kill as many replicas as there are",
    "background work passes a live one that waits for a prefix",
)


def test_every_plant_stands_in_the_source() -> None:
    """Guards the plants against changes of the source: one that does not apply proves nothing."""
    assert [line for plant in PLANTS for line in missing(plant)] == []
    assert len(OF_THE_PSEUDO_CODE) == 8
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_caught_by_its_checker(name: str) -> None:
    """Guards the checkers: one that never says no would let the seeds pass all the same."""
    plant = next(plant for plant in PLANTS if plant.name == name)
    found = catch(plant, seeds_max=20)
    assert found.seed is not None, found
