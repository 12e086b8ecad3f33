"""Invariant 8: no wait is unbounded.

The rule of elders: no sequence gets its first slot before one that arrived more than `overtake_s`
earlier and is still waiting for its own. Four exceptions: the elder is paused; or a fetch from the
disk is under way, for which several may wait, for FETCH_S_MAX at most; or it waits by
itself for a prefix of at least PREFIX_WAIT_MIN tokens that somebody who runs is about to compute
for it; or its tenant has a share and something that runs, for which it waits: then those of other
tenants pass, and of its own only if it runs its share of the places. (One that is head of the line
but has no room lets nobody pass either, so that is no exception.) Live and background sequences
have a rule each: between the two there is no such bound, see the checker `background`.

An elder that runs keeps its memory too: nobody who came later takes it, of whatever class. Only a
tenant with a share may lose it so, and what runs in the background.

Deadlines: after `expire`, nobody lives whose time is over. Drain and idleness have bounds, too,
which the simulator counts in turns and reports under this name.
"""

from jitney.core.events import FinishEvent, PreemptEvent, PreemptReason, StartEvent
from jitney.core.limits import PREFIX_WAIT_MIN
from jitney.core.scheduler_settings import SchedulerSettings
from tests.simulation.alone import Oracle
from tests.simulation.checkers.disk import DiskChecker
from tests.simulation.pauses import Pauses
from tests.simulation.seen import Happened, Name, Planned, Seen, Submitted, Violation

NAME = "waiting"


class WaitingChecker:
    """Knows when everybody came, and who got a first slot before whom."""

    def __init__(
        self, settings: SchedulerSettings, oracle: Oracle, pauses: Pauses, disk: DiskChecker
    ) -> None:
        self._settings = settings
        self._oracle = oracle
        self._arrived: dict[Name, float] = {}
        self._unserved: dict[Name, float] = {}
        self._has_run: set[Name] = set()
        self._running: set[Name] = set()
        self._beside: dict[float, set[Name]] = {}
        self._pauses = pauses
        self._disk = disk

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                self._arrived |= dict.fromkeys(sorted(seen.names), seen.at)
                self._unserved |= dict.fromkeys(sorted(seen.names), seen.at)
            case Planned():
                running = set(seen.owners.values())
                self._beside.setdefault(seen.at, set()).update(self._running, running)
                self._running = running
                self._has_run |= running
            case Happened():
                self._starts([each for each in seen.events if isinstance(each, StartEvent)])
                for event in seen.events:
                    if isinstance(event, PreemptEvent):
                        self._loss(event)
                    if isinstance(event, FinishEvent):
                        self._arrived.pop((event.request_id, event.index), None)
                        self._unserved.pop((event.request_id, event.index), None)
                if seen.method == "expire":
                    self._deadlines(seen.at)

    def _starts(self, starts: list[StartEvent]) -> None:
        arrived = [
            (start, self._unserved.pop((start.request_id, start.index), None)) for start in starts
        ]
        for start, at in arrived:
            if at is None:
                continue  # it ended before the news of its start came out
            for name, earlier in self._unserved.items():
                is_late = earlier + self._settings.overtake_s < at
                if is_late and self._is_rival(name, start) and not self._defers(name, start):
                    raise Violation(
                        NAME,
                        f"{start.request_id} came {at - earlier:.3f} s after {name} and was "
                        f"served before it; the limit is {self._settings.overtake_s} s",
                    )
        if starts:
            last = starts[-1].at
            self._beside = {at: names for at, names in self._beside.items() if at >= last}

    def _loss(self, event: PreemptEvent) -> None:
        name = (event.request_id, event.index)
        request, came = self._oracle.request(name), self._arrived.get(name)
        if came is None or event.at - came <= self._settings.overtake_s:
            return
        if event.reason is PreemptReason.PAUSED or request.share or request.is_background:
            return
        others = [at for other, at in self._arrived.items() if other[0] == event.by]
        if others and min(others) > came:
            raise Violation(
                NAME,
                f"{name} lost its place after {event.at - came:.3f} s to {event.by}, which came "
                f"{min(others) - came:.3f} s later",
            )

    def _is_rival(self, name: Name, start: StartEvent) -> bool:
        started = self._oracle.request((start.request_id, start.index))
        return self._oracle.request(name).is_background == started.is_background

    def _defers(self, name: Name, start: StartEvent) -> bool:
        """Whether it is paused, or those beside it are its tenant's share, or compute a prefix."""
        if self._pauses.was_paused(name, start.at) or self._disk.was_busy(start.at):
            return True
        mine = self._oracle.request(name)
        others = self._beside.get(start.at, ())
        its_own = sum(self._oracle.request(other).tenant == mine.tenant for other in others)
        passer = self._oracle.request((start.request_id, start.index))
        enough = mine.share.running_max if mine.share and passer.tenant == mine.tenant else 1
        if mine.share is not None and its_own >= enough:
            return True
        for other in others:
            theirs = self._oracle.request(other)
            is_shared = mine.id == theirs.id or (
                self._settings.enable_prefix_caching and mine.scope == theirs.scope
            )
            known = theirs.prompt + self._oracle.alone(other).sampled
            if is_shared and known[:PREFIX_WAIT_MIN] == mine.prompt[:PREFIX_WAIT_MIN]:
                return True
        return False

    def _deadlines(self, at: float) -> None:
        settings = self._settings
        for name, arrived in self._arrived.items():
            request = self._oracle.request(name)
            wait_s, total_s = request.queue_timeout_s, request.request_timeout_s
            wait_s = settings.queue_timeout_s if wait_s is None else wait_s
            total_s = settings.request_timeout_s if total_s is None else total_s
            if total_s is not None and arrived + total_s <= at:
                raise Violation(NAME, f"{name} lives {at - arrived:.3f} s, its limit is {total_s}")
            waits = name not in self._has_run and name in self._unserved
            if waits and wait_s is not None and arrived + wait_s <= at:
                raise Violation(NAME, f"{name} waits {at - arrived:.3f} s, its limit is {wait_s}")
