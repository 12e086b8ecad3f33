"""Invariant 13: nobody joins before the window or the group departs, or waits for it longer.

Under `continuous` with a window, newcomers start when the oldest of them has waited for `wait_s`,
or when as many are here as end it. Under the group strategies a group departs when it is full, when
its oldest has waited for `wait_s`, or when the engine drains; answers that are handed out together
come when nobody of the group is left. While nobody runs, whoever may join has joined.
"""

from jitney.core.events import FinishEvent
from jitney.core.request import RequestId
from jitney.core.settings import GroupAnswers, SchedulerSettings, Strategy
from jitney.engine.answer import Ending
from tests.simulation.pauses import Pauses
from tests.simulation.seen import (
    Fetched,
    Happened,
    Name,
    Planned,
    Seen,
    Steered,
    Submitted,
    Violation,
)

NAME = "joining"

PREEMPTIONS = ("displaced", "preempted_saved", "preempted_recomputed")


class JoiningChecker:
    """Knows who is here, who has run, and which group is on its way."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._pauses = Pauses()
        self._arrived: dict[Name, float] = {}
        self._has_run: set[Name] = set()
        self._running: set[Name] = set()
        self._group: set[Name] = set()
        self._group_of: dict[RequestId, int] = {}
        self._group_number = 0
        self._preempted_count = 0
        self._window_waits = 0
        self._drains = False

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        self._pauses.see(seen)
        match seen:
            case Submitted(error=None):
                for index in range(seen.request.params.n):
                    self._arrived[seen.request.id, index] = seen.at
            case Steered(kind="drain"):
                self._drains = True
            case Planned():
                self._planned(seen)
            case Happened():
                for event in seen.events:
                    if isinstance(event, FinishEvent):
                        self._forget((event.request_id, event.index))
            case Fetched(item=Ending() as ending):
                self._answered(seen.request.id, ending)

    @property
    def _is_grouped(self) -> bool:
        return self._settings.strategy is not Strategy.CONTINUOUS

    def _forget(self, name: Name) -> None:
        self._arrived.pop(name, None)
        self._has_run.discard(name)
        self._running.discard(name)
        self._group.discard(name)

    def _planned(self, seen: Planned) -> None:
        running = set(seen.owners.values())
        self._group -= {name for name in self._group - running if self._pauses.is_paused(name[0])}
        waiting = {
            name: at
            for name, at in self._arrived.items()
            if name not in self._group and not self._pauses.is_paused(name[0])
        }
        if self._is_grouped:
            self._groups(seen, running, waiting)
        else:
            self._window(seen, running)
        if not running and seen.batch is None:
            self._idle(seen.at)
        self._has_run |= running
        self._running = running

    def _groups(self, seen: Planned, running: set[Name], waiting: dict[Name, float]) -> None:
        if not self._group and running:
            self._group_number += 1
            self._departs(seen.at, waiting)
        if self._group or running:
            for request_id, _ in running - self._group:
                self._group_of[request_id] = self._group_number
        self._group |= running

    def _departs(self, at: float, waiting: dict[Name, float]) -> None:
        settings = self._settings
        least = settings.sequences_max
        if settings.strategy is Strategy.ADAPTIVE:
            least = settings.group_size_min
        if len(waiting) < least and not self._is_over(at, min(waiting.values(), default=at)):
            raise Violation(NAME, f"a group departs with {len(waiting)}, and {least} are wanted")

    def _window(self, seen: Planned, running: set[Name]) -> None:
        counters = seen.gauges.counters
        preempted_count = sum(counters[name] for name in PREEMPTIONS)
        # Where somebody was sent back in this plan, the places before it are not known.
        is_known = preempted_count == self._preempted_count
        self._preempted_count = preempted_count
        newcomers = {
            name: at
            for name, at in self._arrived.items()
            if name not in self._has_run and not self._pauses.is_paused(name[0])
        }
        was_closed = counters["window_waits"] > self._window_waits
        self._window_waits = counters["window_waits"]
        if was_closed and self._is_over(seen.at, min(newcomers.values())):
            raise Violation(NAME, f"{min(newcomers)} waits for longer than the window")
        starts = running & set(newcomers)
        if not starts or not is_known or self._is_over(seen.at, min(newcomers.values())):
            return
        places = self._settings.sequences_max - len(running - starts)
        size = max(self._settings.window_size or places, self._settings.group_size_min)
        if len(newcomers) < min(size, places):
            raise Violation(NAME, f"{len(newcomers)} of {min(size, places)} join before the end")

    def _idle(self, at: float) -> None:
        """Nobody runs and nothing is done: then somebody must be waited for."""
        for name, arrived in self._arrived.items():
            if self._pauses.is_paused(name[0]):
                continue
            came_back = name in self._has_run and not self._is_grouped
            if came_back or self._is_over(at, arrived):
                raise Violation(NAME, f"{name} is kept out, and nobody runs")

    def _is_over(self, at: float, arrived: float) -> bool:
        wait_s = self._settings.wait_s
        return self._drains or (wait_s is not None and arrived + wait_s <= at)

    def _answered(self, request_id: RequestId, ending: Ending) -> None:
        if self._settings.group_answers is GroupAnswers.EACH or ending.error is not None:
            return
        if ending.was_cancelled or not self._is_grouped:
            return
        number = self._group_of.get(request_id)
        if number == self._group_number and self._group:
            raise Violation(NAME, f"{request_id} is answered before {sorted(self._group)[0]}")
