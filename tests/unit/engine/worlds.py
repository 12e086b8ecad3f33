"""Parts that tests of the engine put together: a clock that is set by hand, a backend that fails
when it should, requests, and a tick over them."""

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.backend import Segment, Traits, Vocabulary
from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint, SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.observe import Observers
from jitney.engine.tick import Tick
from jitney.records import Record

MODEL_LEN_MAX = 1024
OPTIONS = ("priority", "tenant", "scope", "queue_timeout_s", "request_timeout_s")

_numbers = itertools.count()


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.moment = 100.0

    def now(self) -> float:
        return self.moment


class FaultyBackend:
    """The fake backend, with faults that a test puts in line and a gate that it may close."""

    def __init__(self, settings: FakeSettings | None = None) -> None:
        self._fake = FakeBackend(settings or FakeSettings(eos_period=0))
        self.execute_faults: list[Exception | None] = []
        self.reset_faults: list[Exception | None] = []
        self.check_faults: list[Exception | None] = []
        self.checked_count = 0
        self.executed_count = 0
        self.reset_count = 0
        self.closed_count = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        """Set when a batch has arrived, whether the gate lets it through or not."""

    @property
    def traits(self) -> Traits:
        return self._fake.traits

    @property
    def vocabulary(self) -> Vocabulary:
        return self._fake.vocabulary

    def execute(self, batch: Batch) -> Outcome:
        self.entered.set()
        assert self.gate.wait(100), "the test never opened the gate"
        self.executed_count += 1
        fault = self.execute_faults.pop(0) if self.execute_faults else None
        if fault is not None:
            raise fault
        return self._fake.execute(batch)

    def reset(self) -> None:
        self.reset_count += 1
        fault = self.reset_faults.pop(0) if self.reset_faults else None
        if fault is not None:
            raise fault
        self._fake.reset()

    def check(self) -> None:
        self.checked_count += 1
        fault = self.check_faults.pop(0) if self.check_faults else None
        if fault is not None:
            raise fault

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        return self._fake.encode(texts)

    def prepare(self, constraint: Constraint) -> None:
        self._fake.prepare(constraint)

    def close(self) -> None:
        self.closed_count += 1
        self._fake.close()


@dataclass
class World:
    """A tick with its parts at hand."""

    tick: Tick
    clock: HandClock
    backend: FaultyBackend
    scheduler: Scheduler
    records: list[Record] = field(default_factory=list)

    def run_dry(self, turns_max: int = 2000) -> None:
        """Turn until nothing lives, moving the clock to when the tick wants to be asked again."""
        for _ in range(turns_max):
            if not self.tick.has_work or self.tick.stopped is not None:
                return
            if not self.tick.run():
                wake_at = self.tick.wake_at(self.clock.moment)
                assert wake_at is not None, "work left, and nothing to wait for"
                self.clock.moment = max(wake_at, self.clock.moment)
        raise AssertionError(f"not done after {turns_max} turns")


# Any: whatever SamplingParams takes
def make_request(prompt: str = "abc", *, id: str | None = None, **params: Any) -> Request:
    """A request with this sampling, and an id of its own; `prompt` is text of single bytes."""
    options = {name: params.pop(name) for name in OPTIONS if name in params}
    return Request(
        id=RequestId(id or f"r{next(_numbers)}"),
        prompt=tuple(prompt.encode()),
        params=SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **params}),
        seed=7,
        **options,
    )


# Any: whatever SchedulerSettings takes
def make_world(backend: FaultyBackend | None = None, **settings: Any) -> World:
    """A tick over the fake backend and a clock that stands still."""
    backend = backend or FaultyBackend()
    clock = HandClock()
    scheduler = Scheduler(
        SchedulerSettings(**{"model_len_max": MODEL_LEN_MAX, **settings}),
        backend.traits,
        backend.vocabulary.eos_tokens,
    )
    observers = Observers()
    world = World(Tick(scheduler, backend, clock, observers), clock, backend, scheduler)
    observers.add(world.records.append)
    return world
