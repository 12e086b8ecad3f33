"""Parts that tests of the engine put together: a clock that is set by hand, a backend that fails
when it should, requests, a tick over them, and what their mailboxes hold at the end."""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.batch import Batch, Outcome
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import Scheduler
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Answer
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.stats import Stats
from jitney.engine.tick import Tick
from jitney.records import Record

MODEL_LEN_MAX = 1024
OPTIONS = ("priority", "tenant", "scope", "queue_timeout_s", "request_timeout_s")

Kind = TypeVar("Kind")

_numbers = itertools.count()


class HandClock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.moment = 100.0

    def now(self) -> float:
        return self.moment


def raise_next(faults: list[Exception | None]) -> None:
    """Raise the next fault in line, if there is one."""
    fault = faults.pop(0) if faults else None
    if fault is not None:
        raise fault


class FaultyBackend(FakeBackend):
    """The fake backend, with faults that a test puts in line and a gate that it may close."""

    def __init__(self, settings: FakeSettings | None = None) -> None:
        super().__init__(settings or FakeSettings(eos_period=0))
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
        self.look: Callable[[], object] = lambda: None
        """Called before each pass."""

    def execute(self, batch: Batch) -> Outcome:
        self.entered.set()
        assert self.gate.wait(100), "the test never opened the gate"
        self.executed_count += 1
        self.look()
        raise_next(self.execute_faults)
        return super().execute(batch)

    def reset(self) -> None:
        self.reset_count += 1
        raise_next(self.reset_faults)
        super().reset()

    def check(self) -> None:
        self.checked_count += 1
        raise_next(self.check_faults)

    def close(self) -> None:
        self.closed_count += 1
        super().close()


@dataclass
class World:
    """A tick with its parts at hand."""

    tick: Tick
    clock: HandClock
    backend: FaultyBackend
    scheduler: Scheduler
    records: list[Record] = field(default_factory=list)

    @property
    def stats(self) -> Stats:
        return self.tick.statistics.stats(self.clock.now())

    def submit(self, request: Request, *, streams: bool = True) -> Mailbox:
        """The mailbox that gets what the request gives."""
        mailbox = Mailbox(streams=streams)
        self.tick.submit(request, mailbox)
        return mailbox

    def records_of(self, kind: type[Kind]) -> list[Kind]:
        return [each for each in self.records if isinstance(each, kind)]

    def texts(self, requests: list[Request]) -> list[str]:
        """What these requests give when they run here together."""
        mailboxes = [self.submit(request) for request in requests]
        self.run_dry()
        return [answer_of(mailbox).completions[0].text for mailbox in mailboxes]

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


def answer_of(mailbox: Mailbox) -> Answer:
    ending = mailbox.ending
    assert ending is not None, "not ended"
    assert ending.error is None, ending.error
    assert ending.answer is not None
    return ending.answer


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


def texts_alone(requests: list[Request]) -> list[str]:
    """What each request gives in a world of its own."""
    return [make_world().texts([request])[0] for request in requests]
