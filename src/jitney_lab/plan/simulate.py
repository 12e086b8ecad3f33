"""Runs a workload through production schedulers on virtual time; nothing is computed.

One replica or several, and a router before them. A tick takes what the cost says, and every request
gets exactly the tokens that its job wants. Not simulated: HTTP, tokenising, callers that leave, and
the choice of tokens. The policy `sjf` sees the true length of every answer here, and only its limit
in production: see `recommend.py`.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job, Workload
from jitney_lab.plan.replica import Configuration, Live, Replica
from jitney_lab.plan.tick_cost import Cost, TickCost

CLIENT_S = 0.0005
"""How long a client of a closed loop takes to ask again. It misses the tick that begins then."""


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """What each request took, in the order of the ends, on the virtual clock."""

    requests: list[RequestTimes]
    duration_s: float
    tick_count: int
    entry_count: int
    """Sequences of all batches, added up."""
    crowded_out_count: int
    """Requests that were refused because the queue was full."""

    @property
    def mean_batch(self) -> float:
        """Sequences in a forward pass, in the mean."""
        return self.entry_count / max(1, self.tick_count)


class Router:
    """Sends a request to the replica with the fewest; among equals, in turn."""

    def __init__(self, replicas: list[Replica]) -> None:
        self._replicas = replicas
        self._turn = 0

    def choose(self) -> int:
        """The index of the replica for the next request."""
        count = len(self._replicas)
        order = [(self._turn + place) % count for place in range(count)]
        chosen = min(order, key=lambda index: self._replicas[index].live_count)
        self._turn = (chosen + 1) % count
        return chosen


def simulate(
    workload: Workload,
    configuration: Configuration,
    cost: Cost,
    counted: Callable[[Job], bool] = lambda job: True,
    *,
    keeps_tokens: bool = False,
) -> SimulatedRun:
    """Run a workload until every counted job has ended; the times of those only.

    Of the times of tokens only the first is kept unless asked for: a long trace has very many.
    Groups that wait until they are full start anyhow when nothing else can happen any more, as they
    do when a server drains.
    """
    return _Fleet(workload, configuration, cost).run(counted, keeps_tokens=keeps_tokens)


class _Fleet:
    """Replicas on one clock. Times in `_due` that no longer hold are skipped."""

    def __init__(self, workload: Workload, configuration: Configuration, cost: Cost) -> None:
        ticks = TickCost(cost)
        self._replicas = [Replica(configuration, ticks) for _ in range(configuration.replicas)]
        self._router = Router(self._replicas)
        self._due: list[tuple[float, int]] = []
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

    def run(self, counted: Callable[[Job], bool], *, keeps_tokens: bool) -> SimulatedRun:
        """Go on until every counted job has ended."""
        left = sum(map(counted, self._jobs))
        times: list[RequestTimes] = []
        crowded_out_count = 0
        while left:
            for each in self._turn():
                if not keeps_tokens:
                    del each.times.token_times[1:]
                if counted(each.job):
                    times.append(each.times)
                    left -= 1
                    crowded_out_count += each.is_crowded_out
        return SimulatedRun(
            times,
            max((each.ended_at for each in times), default=0.0),
            sum(each.tick_count for each in self._replicas),
            sum(each.entry_count for each in self._replicas),
            crowded_out_count,
        )

    def _turn(self) -> list[Live]:
        """Let the next thing happen, an arrival before a tick; the requests that ended."""
        if not self._arrivals and not self._due:
            self._end_waits()
        if self._arrivals and not (self._due and self._due[0][0] < self._arrivals[0][0]):
            now, at = heapq.heappop(self._arrivals)
            ended = self._arrive(self._jobs[at], now)
        else:
            now, index = heapq.heappop(self._due)
            replica = self._replicas[index]
            if replica.due_at != now:
                return []
            ended = replica.advance(now)
            self._note_due(index)
        self._now = now
        if self._clients is not None:
            for each in ended[: len(self._jobs) - self._next]:
                heapq.heappush(self._arrivals, (each.times.ended_at + CLIENT_S, self._next))
                self._next += 1
        return ended

    def _arrive(self, job: Job, now: float) -> list[Live]:
        live = Live(job, RequestTimes(sent_at=now, prompt_count=job.prompt_count))
        index = self._router.choose()
        due_at = self._replicas[index].due_at
        if not self._replicas[index].submit(live, now):
            return [live]
        if self._replicas[index].due_at != due_at:
            self._note_due(index)
        return []

    def _end_waits(self) -> None:
        """Requests are left, and only more arrivals could start them: none will come."""
        assert not self._has_ended_waits, "no replica has anything to do, and requests are left"
        self._has_ended_waits = True
        for index, replica in enumerate(self._replicas):
            replica.end_waits(self._now)
            self._note_due(index)

    def _note_due(self, index: int) -> None:
        due_at = self._replicas[index].due_at
        if due_at is not None:
            heapq.heappush(self._due, (due_at, index))
