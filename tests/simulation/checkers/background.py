"""Invariant 14: what may wait sits behind.

A background sequence is in no batch while a live one waits for its turn or for its first token, and
gets no slot while a live one waits for one. No live sequence makes way for it. A live sequence does
not wait for its turn while it is paused, while its window or group has not departed, or while its
tenant has a share and something that runs.
"""

from jitney.core.batch import Batch
from jitney.core.events import FinishEvent, PreemptEvent, PreemptReason
from jitney.core.scheduler_settings import SchedulerSettings, Strategy
from tests.simulation.alone import Oracle
from tests.simulation.pauses import Pauses
from tests.simulation.seen import Happened, Name, Planned, Seen, Submitted, TokenEvent, Violation

NAME = "background"


class BackgroundChecker:
    """Knows which live sequences are there, and which of them have a first token or one to come."""

    def __init__(self, settings: SchedulerSettings, oracle: Oracle, pauses: Pauses) -> None:
        gathers = settings.strategy is not Strategy.CONTINUOUS or settings.wait_s != 0.0
        self._gathers = gathers
        self._oracle = oracle
        self._pauses = pauses
        self._live: set[Name] = set()
        self._running: set[Name] = set()
        self._has_run: set[Name] = set()
        self._made: set[Name] = set()
        self._asked: set[Name] = set()
        """Those whose first token is there, or wanted of a batch that was planned."""

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None) if not seen.request.is_background:
                self._live |= seen.names
            case Planned():
                self._planned(seen)
            case Happened():
                for event in seen.events:
                    match event:
                        case TokenEvent():
                            self._made.add((event.request_id, event.index))
                        case PreemptEvent():
                            self._preempted(event)
                        case FinishEvent():
                            self._live.discard((event.request_id, event.index))
                if seen.method == "fail":
                    self._running = set()
                    self._asked &= self._made

    def _planned(self, seen: Planned) -> None:
        running = set(seen.owners.values())
        entries = () if seen.batch is None else seen.batch.entries
        members = {seen.owners[entry.slot] for entry in entries}
        waiting = sorted(name for name in self._live if self._waits(name, running))
        due = sorted(
            name
            for name in self._live & running
            if name not in self._asked and not self._pauses.is_paused(name)
        )
        for name in sorted(members - self._live):
            if self._is_background(name) and (waiting or due):
                raise Violation(NAME, f"{name} is in a batch, and {(waiting or due)[0]} waits")
        for name in sorted(running - self._running - self._live):
            if self._is_background(name) and waiting:
                raise Violation(NAME, f"{name} gets a slot, and {waiting[0]} waits")
        if isinstance(seen.batch, Batch):
            wanting = [entry for entry in entries if entry.wants_token]
            self._asked |= {seen.owners[entry.slot] for entry in wanting}
        self._running = running
        self._has_run |= running

    def _waits(self, name: Name, running: set[Name]) -> bool:
        """Whether a live sequence waits for its turn, and did so before this plan."""
        if name in running or name in self._running or self._pauses.is_paused(name):
            return False
        if self._gathers and name not in self._has_run:
            return False
        request = self._oracle.request(name)
        others = (running | self._running) & self._live
        is_held = any(self._oracle.request(each).tenant == request.tenant for each in others)
        return request.share is None or not is_held

    def _preempted(self, event: PreemptEvent) -> None:
        by = self._oracle.request((event.by, 0))
        is_paused = event.reason is PreemptReason.PAUSED
        if by.is_background and not is_paused:
            name = (event.request_id, event.index)
            if not self._is_background(name):
                raise Violation(NAME, f"{name} makes way for {by.id}")

    def _is_background(self, name: Name) -> bool:
        return self._oracle.request(name).is_background
