"""Runs a simulated fleet on virtual time: `run_fleet`.

The scheduler of every replica, the router of every ingress and the progress of every request are
the production ones. Sockets, processes, Ray and the model are not there: messages take a moment,
passes take their time, and everything happens in one order, which the seed decides.
"""

import heapq
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any  # Any: the arguments of a later call

from jitney_cluster.back_channel import SILENCE_S_MAX
from jitney_cluster.routing import HEAD_TOKENS, Head, ReplicaReport, RouteTable
from tests.simulation.fleet.checks import Figures, FleetChecks
from tests.simulation.fleet.ingress import Ingress
from tests.simulation.fleet.replica import SimulatedReplica
from tests.simulation.fleet.routers import make_router
from tests.simulation.fleet.traffic import Asked, Traffic
from tests.simulation.fleet.world import FleetWorld
from tests.simulation.seen import Violation

STALL_S = 600.0
"""So long after the last arrival everything must have ended."""

CHECK_EVERY = 50
"""Of so many reports one comes with a recount of its scheduler."""

STEPS = 40
"""So often the progress is told."""

NOTICED_S = 0.3
"""A connection that ends is noticed within this time, one that is silent later."""


@dataclass(frozen=True, slots=True)
class FleetFailure:
    """What a checker found, and when."""

    checker: str
    sentence: str
    at: float


@dataclass(frozen=True, slots=True)
class FleetReport:
    """What became of a world."""

    world: FleetWorld
    figures: Figures
    computed_count: int
    """Prompt tokens that were computed."""
    lost_count: int
    """Replicas that died."""
    killed_count: int
    """Those of them that a request killed."""
    virtual_s: float
    marks: Counter[str]
    failure: FleetFailure | None = None


def run_fleet(
    world: FleetWorld, progress: Callable[[int], None] = lambda ended: None
) -> FleetReport:
    """Run a world to its end, or until a checker finds something."""
    return FleetSimulation(world).run(progress)


class FleetSimulation:
    """The replicas and ingresses of a world on one clock."""

    def __init__(self, world: FleetWorld) -> None:
        self._world = world
        self._heap: list[tuple[float, int, Any, tuple[Any, ...]]] = []
        self._count = 0
        self._now = 0.0
        self._faults = random.Random(f"{world.seed} faults")
        self._reports = random.Random(f"{world.seed} reports")
        self._replicas: dict[str, SimulatedReplica] = {}
        self._born_count = 0
        self._computed_count = 0
        self._report_count = 0
        self._stall_at = math.inf
        self._checks = FleetChecks(world, self._replicas)
        self._traffic = Traffic(world)
        draw = random.Random(f"{world.seed} routers")
        self._ingresses = [
            Ingress(
                f"ingress {at}",
                make_router(world.router, f"ingress {at}", self._count_of, draw),
                self._replicas,
                world.settings,
                self._later,
                self._checks,
            )
            for at in range(world.ingress_count)
        ]

    def run(self, progress: Callable[[int], None]) -> FleetReport:
        """Let everything happen."""
        failure = None
        try:
            self._begin()
            self._loop(progress)
            self._rest()
        except Violation as violation:
            failure = FleetFailure(violation.checker, violation.sentence, self._now)
        except AssertionError as error:
            failure = FleetFailure("assertion", str(error), self._now)
        for replica in self._living():
            self._computed_count += replica.scheduler.counters["computed_prompt_tokens"]
        return FleetReport(
            self._world,
            self._checks.figures,
            self._computed_count,
            self._born_count - len(self._living()),
            self._checks.kill_count,
            self._now,
            self._checks.marks,
            failure,
        )

    def _begin(self) -> None:
        world = self._world
        for _ in range(world.replica_count):
            name = self._bear(0.0)
            for ingress in self._ingresses:
                ingress.joined(name, 0.0)
        for call, count in ((self._lose_any, world.loss_count), (self._cut_any, world.cut_count)):
            for _ in range(count):
                self._later(self._faults.uniform(0.02, 0.98) * world.span_s, call)
        self._await_arrival()

    def _loop(self, progress: Callable[[int], None]) -> None:
        heap, figures = self._heap, self._checks.figures
        count = self._world.request_count
        shown_at = step = count / STEPS
        while figures.ended_count < count:
            at, _, call, arguments = heapq.heappop(heap)
            if at > self._stall_at:
                raise Violation("ending", f"{count - figures.ended_count} requests do not end")
            self._now = at
            call(*arguments, at)
            if figures.ended_count >= shown_at:
                shown_at += step
                progress(figures.ended_count)

    def _later(self, at: float, call: Any, *arguments: Any) -> None:
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, call, arguments))

    def _await_arrival(self) -> None:
        asked = self._traffic.next()
        if asked is None:
            self._stall_at = self._now + STALL_S
        else:
            self._later(asked.at, self._arrive, asked)

    def _arrive(self, asked: Asked, now: float) -> None:
        self._ingresses[asked.ingress].begin(asked, now)
        self._await_arrival()

    def _bear(self, now: float) -> str:
        """A replica is started, with an empty memory."""
        self._born_count += 1
        name = f"replica {self._born_count}"
        slowness = self._faults.uniform(0.95, 1.05)
        replica = SimulatedReplica(name, self._world, slowness, self._later, self._checks)
        replica.killed = self._lose
        self._replicas[name] = replica
        first_s = self._reports.random() * self._world.report_s
        self._later(now + first_s, self._report, replica)
        return name

    def _replace(self, now: float) -> None:
        name = self._bear(now)
        for ingress in self._ingresses:
            self._later(now + self._faults.random(), ingress.joined, name)

    def _lose_any(self, now: float) -> None:
        living = self._living()
        if not living:
            return
        replica = self._faults.choice(living)
        if replica.orders and self._faults.random() < 0.5:
            replica.is_doomed = True
        else:
            self._lose(replica, now)

    def _lose(self, replica: SimulatedReplica, now: float) -> None:
        """A replica dies. Its ingresses notice that at different moments."""
        replica.die(now, self._faults)
        self._computed_count += replica.scheduler.counters["computed_prompt_tokens"]
        is_silent = self._faults.random() < self._world.silence_share
        for ingress in self._ingresses:
            noticed_s = SILENCE_S_MAX if is_silent else self._faults.uniform(0.001, NOTICED_S)
            self._later(now + noticed_s, ingress.lost, replica.name)
        self._later(now + self._faults.uniform(*self._world.replaced_s), self._replace)

    def _cut_any(self, now: float) -> None:
        """A connection breaks. Both ends notice that, in either order."""
        living = self._living()
        if not living:
            return
        replica, ingress = self._faults.choice(living), self._faults.choice(self._ingresses)
        line = replica.cut(ingress.name, now)
        for call in (ingress.notice_cut, partial(replica.notice_cut, ingress.name)):
            noticed_s = self._faults.choice((NOTICED_S, SILENCE_S_MAX)) * self._faults.random()
            self._later(now + noticed_s, call, line)

    def _report(self, replica: SimulatedReplica, now: float) -> None:
        """A replica reports to all ingresses; some reports are late, and some are lost."""
        if replica.is_dead:
            return
        world, draw = self._world, self._reports
        report = replica.report(now)
        self._report_count += 1
        if self._report_count % CHECK_EVERY == 0:
            replica.scheduler.check()
        for ingress in self._ingresses:
            late_s = draw.random() * world.report_late_s
            if draw.random() >= world.report_lost_share:
                self._later(now + late_s, ingress.reported, replica.name, report)
        self._later(now + world.report_s, self._report, replica)

    def _rest(self) -> None:
        """Let what was cancelled leave the replicas; then nothing may be left anywhere."""
        end_at = self._now + STALL_S
        while self._now < end_at and any(each.orders for each in self._living()):
            self._now, _, call, arguments = heapq.heappop(self._heap)
            call(*arguments, self._now)
        self._checks.rest(sum(len(each.live) for each in self._ingresses))
        for replica in self._living():
            replica.scheduler.check()
            if replica.orders or replica.scheduler.snapshot().unfinished_count:
                raise Violation("ending", f"{replica.name} still runs {list(replica.orders)}")
        # With nothing seen: whatever a table still has would count.
        reports = {each.name: replace(each.report(self._now), seen={}) for each in self._living()}
        for ingress in self._ingresses:
            if isinstance(ingress.router, RouteTable):
                _check_recount(ingress.router, ingress.name, reports)

    def _living(self) -> list[SimulatedReplica]:
        return [each for each in self._replicas.values() if not each.is_dead]

    def _count_of(self, name: str) -> float:
        """Requests that a replica has at this moment; a dead one does not answer."""
        replica = self._replicas[name]
        return math.inf if replica.is_dead else len(replica.orders)


def _check_recount(table: RouteTable, ingress: str, reports: dict[str, ReplicaReport]) -> None:
    """The sums of a table in which nothing runs are those of a new one."""
    new = RouteTable(ingress)
    names = [name for name in table.replicas if name in reports]
    table.keep(names)
    new.keep(names)
    for name in names:
        table.report(name, reports[name])
        new.report(name, reports[name])
    for name in names:
        head = Head(3 * HEAD_TOKENS, tuple(sorted(reports[name].heads)[:2]))
        if table.expected_s(name, head) != new.expected_s(name, head):
            raise Violation("recount", f"{name} is expected to be busier than it is")
