"""One replica on virtual time: a production scheduler, and a backend that only takes time.

Tests: tests/unit/lab/plan/test_simulate.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jitney.core.backend import Traits
from jitney.core.batch import NO_TOKEN, Outcome
from jitney.core.events import Event, FinishEvent, FinishReason, TokensEvent
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.errors import JitneyError
from jitney_cluster.routing import HEAD_STRIDES, ReplicaReport
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job
from jitney_lab.plan.tick_cost import TickCost

_FILLING = 0
"""The token of prompts and completions. Only the first one of a prompt is its own."""

_SHARED = -1
"""The token of what prompts share."""

INGRESS = "plan"
"""The name under which the router knows itself."""

CELL = 4
"""A larger fleet is simulated as so many replicas with their part of the load."""

REPLICAS_MAX = 100_000
"""Of a fleet that is simulated as a cell."""

PROMPT_MAX = 100_000
"""A longer prompt is refused anyhow, and is not built at its full length."""


def replicas_text(count: int) -> str:
    """So many replicas, in words."""
    return "1 replica" if count == 1 else f"{count:,} replicas"


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of every replica, and how many there are."""

    settings: SchedulerSettings
    traits: Traits
    replicas: int = 1


@dataclass(slots=True, eq=False)
class Live:
    """A request that has not ended."""

    request: Request
    times: RequestTimes
    number: int = 0
    """The router counts what it sends."""


def make_request(job: Job, prompt_max: int = PROMPT_MAX) -> Request:
    """The request of a job. Prompts differ in their first token after what they share.

    A longer prompt than `prompt_max` is cut: it is refused anyhow.
    """
    if job.prompt_count > prompt_max:
        job = replace(job, prompt_count=prompt_max, prefix_count=0)
    own = (job.number + 1,) if job.prompt_count > job.prefix_count else ()
    filling = (_FILLING,) * (job.prompt_count - job.prefix_count - len(own))
    return job.request((_SHARED,) * job.prefix_count + own + filling)


def refusal_of(configuration: Configuration, jobs: Iterable[Job]) -> str | None:
    """Why even the request with the shortest prompt is refused; None if it is taken."""
    shortest = min(jobs, key=lambda job: job.prompt_count)
    scheduler = Scheduler(configuration.settings, configuration.traits, ())
    try:
        scheduler.submit(make_request(shortest), 0.0)
    except JitneyError as error:
        return str(error)
    return None


class SimulatedReplica:
    """It does something when it is due: ends a pass, or begins one."""

    def __init__(self, configuration: Configuration, cost: TickCost) -> None:
        settings = configuration.settings
        self.scheduler = Scheduler(settings, configuration.traits, ())
        self._cost = cost
        self._has_deadlines = (
            settings.queue_timeout_s is not None or settings.request_timeout_s is not None
        )
        self._planned: PlannedBatch | None = None
        self._pass_s = 0.0
        self._sleeps = True
        self._live: dict[RequestId, Live] = {}
        self._held: list[Live] = []
        self.begun: list[Live] = []
        """Requests that got their first token; the router takes them from here."""
        self._seen = 0
        self._ended_count = 0
        self._busy_s = 0.0
        self._busy_since = 0.0
        self.due_at: float | None = None
        """When `advance` has something to do; None: when something arrives."""
        self.tick_count = 0
        self.entry_count = 0

    def submit(self, live: Live, now: float) -> None:
        """Take a request. Raises the refusal of the scheduler."""
        self._seen = live.number
        self.scheduler.submit(live.request, now)
        if not self._live:
            self._busy_since = now
        self._live[live.request.id] = live
        if self._sleeps:
            self.due_at = now

    def report(self, now: float) -> ReplicaReport:
        """The state for the router, as `jitney_cluster.replica_engine` reports it."""
        busy_s = self._busy_s + (now - self._busy_since if self._live else 0.0)
        ends_per_s = self._ended_count / busy_s if busy_s else 0.0
        heads = self.scheduler.heads(HEAD_STRIDES)
        return ReplicaReport.of(self.scheduler.snapshot(), ends_per_s, heads, {INGRESS: self._seen})

    def end_waits(self, now: float) -> None:
        """Let a group start that is not full: nobody will fill it."""
        self.scheduler.end_waits(now)
        if self._live and self._sleeps:
            self.due_at = now

    def advance(self, now: float) -> list[Live]:
        """End the pass or begin the next; the requests that ended."""
        return self._begin(now) if self._planned is None else self._finish(self._planned, now)

    def _begin(self, now: float) -> list[Live]:
        ended = self._take(self.scheduler.expire(now), now, now) if self._has_deadlines else []
        self._planned = planned = self.scheduler.plan(now)
        if self._held and not self.scheduler.holds_answers:
            ended += self._given_out(now)
        self._sleeps = planned is None
        if planned is None:
            self.due_at = self.scheduler.wake_at(now)
        else:
            self._pass_s = self._cost.pass_s(planned.batch)
            self.tick_count += 1
            self.entry_count += planned.batch.entry_count
            self.due_at = now + self._pass_s
        return ended

    def _finish(self, planned: PlannedBatch, now: float) -> list[Live]:
        batch = planned.batch
        of_spans = [_FILLING if each.wants_token else NO_TOKEN for each in batch.spans]
        tokens = (*[_FILLING] * planned.decode_count, *of_spans)
        events = self.scheduler.apply(planned, Outcome(batch.number, tokens, self._pass_s), now)
        self._planned = None
        self.due_at = now + self._cost.host_s(batch)
        return self._take(events, now, self.due_at)

    def _take(self, events: Iterable[Event], now: float, ended_at: float) -> list[Live]:
        ended: list[Live] = []
        live = self._live
        for event in events:
            if type(event) is TokensEvent:
                for request_id, _ in event.names:
                    each = live[request_id]
                    if not each.times.token_times:
                        each.times.token_times.append(now)
                        self.begun.append(each)
            elif type(event) is FinishEvent:
                each = live.pop(event.request_id)
                each.times.ended_at = ended_at
                each.times.completion_count = event.completion_count
                if event.reason is not FinishReason.LENGTH:
                    each.times.error = event.message or event.reason.value
                self._ended_count += 1
                if not live:
                    self._busy_s += now - self._busy_since
                (self._held if self.scheduler.holds_answers else ended).append(each)
        return ended

    def _given_out(self, now: float) -> list[Live]:
        """The answers of a group are given together, when the last is there."""
        given, self._held = self._held, []
        for each in given:
            each.times.ended_at = now
        return given
