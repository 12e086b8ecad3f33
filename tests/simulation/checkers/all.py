"""Every checker of a run, in the order in which they look."""

from jitney.core.backend import Traits
from jitney.core.scheduler import Scheduler
from tests.simulation.alone import Oracle
from tests.simulation.checkers.background import BackgroundChecker
from tests.simulation.checkers.capacity import CapacityChecker
from tests.simulation.checkers.disk import DiskChecker
from tests.simulation.checkers.ending import EndingChecker
from tests.simulation.checkers.isolation import IsolationChecker
from tests.simulation.checkers.joining import JoiningChecker
from tests.simulation.checkers.ledger import LedgerChecker
from tests.simulation.checkers.limits import LimitsChecker
from tests.simulation.checkers.oracle import OracleChecker
from tests.simulation.checkers.scope import ScopeChecker
from tests.simulation.checkers.shares import SharesChecker
from tests.simulation.checkers.states import StatesChecker
from tests.simulation.checkers.steering import SteeringChecker
from tests.simulation.checkers.stream import StreamChecker
from tests.simulation.checkers.usage import UsageChecker
from tests.simulation.checkers.waiting import WaitingChecker
from tests.simulation.checkers.work import WorkChecker
from tests.simulation.disk import DictShelf
from tests.simulation.pauses import Pauses
from tests.simulation.seen import Checker
from tests.simulation.world import World


def make_checkers(
    world: World,
    scheduler: Scheduler,
    traits: Traits,
    oracle: Oracle,
    shelf: DictShelf | None,
) -> list[Checker]:
    """One for each invariant."""
    settings = world.settings
    pauses = Pauses(settings)
    shares = SharesChecker(pauses)
    disk = DiskChecker(oracle, shelf, world.disk.limit if world.disk else 0)
    return [
        # No checker: what it keeps of pauses is for those that follow.
        pauses,
        disk,
        CapacityChecker(settings, traits, oracle),
        SteeringChecker(settings, traits, oracle, pauses),
        JoiningChecker(settings, oracle, pauses, disk),
        BackgroundChecker(settings, oracle, pauses),
        ScopeChecker(oracle, shelf.fed if shelf else {}, reuses=settings.enable_prefix_caching),
        OracleChecker(oracle),
        StreamChecker(oracle),
        EndingChecker(),
        StatesChecker(),
        IsolationChecker(oracle, by_chance=world.faults.any_batch),
        WaitingChecker(settings, oracle, pauses, disk),
        # Before the shares are told of a request: what it asks them is how things stood.
        LimitsChecker(settings, shares.has_room),
        shares,
        UsageChecker(pauses),
        WorkChecker(),
        LedgerChecker(scheduler.check),
    ]
