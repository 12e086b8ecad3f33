"""Runs a workload through production schedulers on virtual time; nothing is computed.

One replica or several, and before them the router of a cluster. A tick takes what the cost says,
and every request gets exactly the tokens of its job. Not simulated: HTTP, tokenising, callers that
leave, and the choice of tokens. The policy `sjf` sees the true length of every answer here, and
only its limit in production: see `recommend.py`.
"""

import heapq
import math
from dataclasses import dataclass

from jitney.errors import JitneyError, QueueFull
from jitney_cluster.routing import RouteTable, head_of
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job, Workload
from jitney_lab.plan.replica import (
    INGRESS,
    PROMPT_MAX,
    Configuration,
    Live,
    SimulatedReplica,
    make_request,
)
from jitney_lab.plan.tick_cost import Cost, TickCost

CLIENT_S = 0.0005
"""How long a client of a closed loop takes to ask again. It misses the tick that begins then."""

REPORT_S = 1.0
"""Replicas report to the router this often, as on a cluster."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What each request took, in the order of the ends, on the virtual clock."""

    requests: list[RequestTimes]
    duration_s: float
    tick_count: int
    entry_count: int
    """Sequences of all batches, added up."""

    @property
    def mean_batch(self) -> float:
        """Sequences in a forward pass, in the mean."""
        return self.entry_count / max(1, self.tick_count)


class Router:
    """The router of a cluster before simulated replicas. They report once a second, at once.

    Only a replica that has done something since its last report has another one.
    """

    def __init__(self, replicas: dict[str, SimulatedReplica]) -> None:
        self._replicas = replicas
        self._table = RouteTable(INGRESS)
        self._table.keep(replicas)
        self._sent_count = 0
        self._changed = set(replicas)
        self._report_at = 0.0

    def look(self, now: float) -> None:
        """Take the reports that are due. Nothing has changed since that moment."""
        if now >= self._report_at:
            for name in self._changed:
                self._table.report(name, self._replicas[name].report(now))
            self._changed.clear()
            self._report_at = math.floor(now / REPORT_S + 1) * REPORT_S

    def send(self, live: Live, now: float) -> str | None:
        """Send a request to a replica, or to another one if that is full; None if it is refused."""
        head = head_of(live.request.prompt, live.request.scope)
        full: list[str] = []
        refusal: JitneyError | None = None
        while (name := self._table.choose(head, full)) is not None:
            self._sent_count += 1
            live.number = self._sent_count
            try:
                self._replicas[name].submit(live, now)
            except QueueFull as error:
                refusal = error
                full.append(name)
            except JitneyError as error:
                refusal = error
                break
            else:
                self._table.sent(name, live.request.id, live.number, head)
                self._changed.add(name)
                return name
        live.times.error, live.times.ended_at = str(refusal), now
        return None

    def note(self, name: str, ended: list[Live]) -> None:
        """A replica has ended a pass or begun one, and with it these requests."""
        begun = self._replicas[name].begun
        for live in begun:
            self._table.began(name, live.number)
        begun.clear()
        for live in ended:
            self._table.ended(name, live.request.id)
        self._changed.add(name)


def simulate(workload: Workload, configuration: Configuration, cost: Cost) -> SimulatedRun:
    """Run a workload to its end. Of the times of tokens only the first is kept.

    Groups that wait until they are full start anyhow when nothing else can happen any more, as they
    do when a server drains.
    """
    fleet = _SimulatedFleet(workload, configuration, cost)
    times: list[RequestTimes] = []
    while len(times) < len(workload.jobs):
        times += [each.times for each in fleet.turn()]
    return SimulatedRun(
        times,
        max((each.ended_at for each in times), default=0.0),
        sum(each.tick_count for each in fleet.replicas.values()),
        sum(each.entry_count for each in fleet.replicas.values()),
    )


class _SimulatedFleet:
    """Replicas on one clock. Times in `_due` that no longer hold are skipped."""

    def __init__(self, workload: Workload, configuration: Configuration, cost: Cost) -> None:
        ticks = TickCost(cost)
        names = map(str, range(configuration.replicas))
        self.replicas = {name: SimulatedReplica(configuration, ticks) for name in names}
        self._router = Router(self.replicas)
        self._prompt_max = max(configuration.settings.model_len_max + 1, PROMPT_MAX)
        self._due: list[tuple[float, str]] = []
        self._now = 0.0
        self._has_ended_waits = False
        self._jobs = workload.jobs
        self._clients = workload.clients
        # Sorted, and so a heap.
        self._arrivals = [(job.at_s, at) for at, job in enumerate(workload.jobs)]
        self._next = len(workload.jobs)
        if workload.clients is not None:
            self._next = min(workload.clients, len(workload.jobs))
            self._arrivals = [(0.0, at) for at in range(self._next)]

    def turn(self) -> list[Live]:
        """Let the next thing happen, an arrival before a tick; the requests that ended."""
        if not self._arrivals and not self._due:
            self._end_waits()
        if self._arrivals and not (self._due and self._due[0][0] < self._arrivals[0][0]):
            now, at = heapq.heappop(self._arrivals)
            self._router.look(now)
            ended = self._arrive(self._jobs[at], now)
        else:
            now, name = heapq.heappop(self._due)
            replica = self.replicas[name]
            if replica.due_at != now:
                return []
            self._router.look(now)
            ended = replica.advance(now)
            self._router.note(name, ended)
            self._note_due(name)
        self._now = now
        if self._clients is not None:
            for each in ended[: len(self._jobs) - self._next]:
                heapq.heappush(self._arrivals, (each.times.ended_at + CLIENT_S, self._next))
                self._next += 1
        return ended

    def _arrive(self, job: Job, now: float) -> list[Live]:
        times = RequestTimes(sent_at=now, prompt_count=job.prompt_count)
        live = Live(make_request(job, self._prompt_max), times)
        name = self._router.send(live, now)
        if name is None:
            return [live]
        if self.replicas[name].due_at == now:
            self._note_due(name)
        return []

    def _end_waits(self) -> None:
        """Requests are left, and only more arrivals could start them: none will come."""
        assert not self._has_ended_waits, "no replica has anything to do, and requests are left"
        self._has_ended_waits = True
        for name, replica in self.replicas.items():
            replica.end_waits(self._now)
            self._note_due(name)

    def _note_due(self, name: str) -> None:
        due_at = self.replicas[name].due_at
        if due_at is not None:
            heapq.heappush(self._due, (due_at, name))
