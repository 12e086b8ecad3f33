"""One replica on virtual time: a production scheduler, and a backend that only takes time.

Tests: tests/unit/lab/plan/test_simulate.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from jitney.core.backend import Traits
from jitney.core.batch import Outcome, Sample
from jitney.core.events import Event, FinishEvent, FinishReason, TokenEvent
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.errors import JitneyError, QueueFull
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job
from jitney_lab.plan.tick_cost import TickCost

_TOKEN = Sample(token=0)
_NO_TOKEN = Sample()
_FILLING = 0
"""The token that prompts and completions are made of. The first of a prompt is its own."""


CELL = 4
"""A larger fleet is simulated as so many replicas with their part of the load."""

REPLICAS_MAX = 100_000
"""Of a fleet that is simulated as a cell."""

MADE_MAX = 100_000
"""A longer prompt that is refused anyhow is not made at its full length."""


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

    job: Job
    times: RequestTimes
    is_crowded_out: bool = False
    """Whether it was refused because the queue was full."""


def make_request(job: Job) -> Request:
    """The request of a job. Prompts differ in their first token after what they share."""
    group = (-1 - job.prefix_group,)
    own = (job.number + 1,) if job.prompt_count > job.prefix_count else ()
    filling = (_FILLING,) * (job.prompt_count - job.prefix_count - len(own))
    return Request(
        id=RequestId(str(job.number)),
        prompt=group * job.prefix_count + own + filling,
        params=_params(job.completion_count),
        seed=0,
    )


def refusal_of(configuration: Configuration, jobs: Iterable[Job]) -> str | None:
    """Why even the request with the shortest prompt is refused; None if it is taken."""
    shortest = min(jobs, key=lambda job: job.prompt_count)
    scheduler = Scheduler(configuration.settings, configuration.traits, ())
    try:
        scheduler.submit(make_request(shortest), 0.0)
    except JitneyError as error:
        return str(error)
    return None


@lru_cache(maxsize=4096)
def _params(completion_count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=completion_count, ignore_eos=True)


class Replica:
    """It does something when it is due: ends a pass, or begins one."""

    def __init__(self, configuration: Configuration, cost: TickCost) -> None:
        settings = configuration.settings
        self.scheduler = Scheduler(settings, configuration.traits, ())
        self._cost = cost
        self._prompt_max = max(settings.model_len_max + 1, MADE_MAX)
        self._has_deadlines = (
            settings.queue_timeout_s is not None or settings.request_timeout_s is not None
        )
        self._planned: PlannedBatch | None = None
        self._pass_s = 0.0
        self._sleeps = True
        self._live: dict[RequestId, Live] = {}
        self._held: list[Live] = []
        self.due_at: float | None = None
        """When `advance` has something to do; None: when something arrives."""
        self.tick_count = 0
        self.entry_count = 0

    @property
    def live_count(self) -> int:
        """Requests that have not ended."""
        return len(self._live)

    def submit(self, live: Live, now: float) -> bool:
        """Take a request; false if it is refused."""
        job = live.job
        if job.prompt_count > self._prompt_max:
            # It is refused, and need not have all its tokens for that.
            job = replace(job, prompt_count=self._prompt_max, prefix_count=0)
        request = make_request(job)
        try:
            self.scheduler.submit(request, now)
        except JitneyError as error:
            live.times.error = str(error)
            live.times.ended_at = now
            live.is_crowded_out = isinstance(error, QueueFull)
            return False
        self._live[request.id] = live
        if self._sleeps:
            self.due_at = now
        return True

    def end_waits(self, now: float) -> None:
        """Let a group start that is not full: nobody will fill it."""
        self.scheduler.end_waits(now)
        if self._live and self._sleeps:
            self.due_at = now

    def advance(self, now: float) -> list[Live]:
        """End the pass or begin the next; the requests that ended."""
        ended: list[Live] = []
        if self._planned is not None:
            self._finish(self._planned, now, ended)
        else:
            self._begin(now, ended)
        return ended

    def _begin(self, now: float, ended: list[Live]) -> None:
        if self._has_deadlines:
            self._take(self.scheduler.expire(now), now, now, ended)
        planned = self.scheduler.plan(now)
        if self._held and not self.scheduler.holds_answers:
            self._give_out(now, ended)
        self._sleeps = planned is None
        if planned is None:
            self.due_at = self.scheduler.wake_at(now)
            return
        self._planned = planned
        self._pass_s = self._cost.pass_s(planned.batch)
        self.tick_count += 1
        self.entry_count += len(planned.batch.entries)
        self.due_at = now + self._pass_s

    def _finish(self, planned: PlannedBatch, now: float, ended: list[Live]) -> None:
        batch = planned.batch
        samples = tuple([_TOKEN if each.wants_token else _NO_TOKEN for each in batch.entries])
        events = self.scheduler.apply(planned, Outcome(batch.number, samples, self._pass_s), now)
        self._planned = None
        self.due_at = now + self._cost.host_s(batch)
        self._take(events, now, self.due_at, ended)

    def _take(self, events: Iterable[Event], now: float, told_at: float, ended: list[Live]) -> None:
        live = self._live
        for event in events:
            if type(event) is TokenEvent:
                live[event.request_id].times.token_times.append(now)
            elif type(event) is FinishEvent:
                each = live.pop(event.request_id)
                each.times.ended_at = told_at
                each.times.completion_count = event.completion_count
                if event.reason is not FinishReason.LENGTH:
                    each.times.error = event.message or event.reason.value
                (self._held if self.scheduler.holds_answers else ended).append(each)

    def _give_out(self, now: float, ended: list[Live]) -> None:
        """The answers of a group are given together, when the last is there."""
        for each in self._held:
            each.times.ended_at = now
        ended += self._held
        self._held.clear()
