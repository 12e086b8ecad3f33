"""What a server needs of an engine: `ServedEngine`. One engine is one; so are those of a cluster,
of which each is seen as a `ReplicaView`.

Tests: tests/unit/engine/test_engine.py, tests/unit/cluster/test_fleet.py and test_overview.py.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from jitney.core.backend import TextBackend
from jitney.core.request import Request
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Answer
from jitney.engine.engine import EngineState
from jitney.engine.handle import Handle
from jitney.engine.stats import Statistics, Stats
from jitney.errors import EngineError
from jitney.records import Observer


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """Levels, sums since its start, rates of the last seconds, and its detail."""

    name: str
    snapshot: Snapshot
    prompt_tokens: int
    """Of requests that ran there. A request that moved counts on each."""
    cached_tokens: int
    """Of those, found in its cache."""
    completion_tokens: int
    tokens_per_s: float
    prefill_tokens_per_s: float
    detail: Detail | None
    """None before it was first asked. Its times are those of the one who asked."""


class ServedEngine(Protocol):
    """Takes requests and answers them. `jitney.engine.engine` explains each part."""

    @property
    def backend(self) -> TextBackend:
        """What makes requests from texts."""

    @property
    def settings(self) -> SchedulerSettings:
        """Its limits, over all replicas."""

    @property
    def state(self) -> EngineState:
        """Whether it takes requests, only finishes them, or has stopped."""

    @property
    def failure(self) -> EngineError | None:
        """Why it stopped; None while it runs."""

    @property
    def is_backend_ready(self) -> bool:
        """Whether anything can be computed now."""

    @property
    def stalled_s(self) -> float:
        """How long no forward pass has ended though one is due."""

    @property
    def observer_failed_count(self) -> int:
        """How often an observer raised."""

    def send(
        self,
        request: Request,
        *,
        streams: bool = True,
        is_bounded: bool = False,
        arrived_at: float | None = None,
    ) -> Handle[Answer]:
        """Submit a request without waiting. A refusal comes through the handle."""

    def observe(self, observer: Observer) -> None:
        """Give this observer every record."""

    def stats(self) -> Stats:
        """Counters and averages since the start."""

    def totals(self) -> Statistics:
        """The sums behind the statistics."""

    def snapshot(self) -> Snapshot:
        """Slots, memory and queue."""

    def look(self, characters_max: int = 0) -> Future[Detail]:
        """Ask for the detail. If there are replicas, it is in their views when this is answered."""

    def replica_views(self) -> tuple[ReplicaView, ...] | None:
        """The replicas that are there; None if this is one engine."""

    def end_waits(self) -> None:
        """From now on nothing waits to be gathered or resumed."""

    def close(self, drain_s: float = 0.0) -> None:
        """Finish for so long at most, cancel the rest, stop."""
