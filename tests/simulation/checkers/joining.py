"""Invariant 13: nobody joins before the window or the group departs, or waits for it longer.

A newcomer has never run. Under `continuous` with a window, newcomers start when the oldest of them
has waited for `wait_s`, or when as many are here as end it. Under the group strategies a group
departs when it is full, when its oldest newcomer has waited for `wait_s`, or when the engine
drains; no newcomers join it but those who were there, and they do, also when all others have ended;
answers that are handed out together come when nobody of the group is left. While nobody runs,
whoever may join has joined. Background sequences are no part of this: they may join when nobody
else wants to.
"""

from collections import Counter

from jitney.core.events import FinishEvent, PreemptEvent
from jitney.core.request import RequestId
from jitney.core.rules.cost import Fit
from jitney.core.scheduler_settings import GroupAnswers, SchedulerSettings, Strategy
from jitney.engine.answer import Ending
from tests.simulation.alone import Oracle
from tests.simulation.checkers.disk import DiskChecker
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

HAIR = 1e-9
"""Where rounding decides between two sizes of a group, either is right."""

PREEMPTIONS = ("displaced", "preempted_saved", "preempted_recomputed")

Arrivals = dict[Name, float]


class JoiningChecker:
    """Knows who is here, who has run, and which group is on its way."""

    def __init__(
        self, settings: SchedulerSettings, oracle: Oracle, pauses: Pauses, disk: DiskChecker
    ) -> None:
        self._settings = settings
        self._oracle = oracle
        self._pauses = pauses
        self._disk = disk
        self._arrived: Arrivals = {}
        self._background: set[Name] = set()
        self._has_run: set[Name] = set()
        self._running: set[Name] = set()
        self._group: set[Name] = set()
        self._group_of: dict[RequestId, int] = {}
        self._group_number = 0
        self._places = 0
        self._places_least = 0
        """Those that are certain; shares may keep a group from filling the others."""
        self._here: set[Name] = set()
        """Who was there when the group departed."""
        self._awaited: set[Name] = set()
        """Those of them who are sure to join it still."""
        self._has_begun = False
        """Whether one of them has joined: until then only those run who ran before."""
        self._strayed: set[Name] = set()
        """Those of them who were paused before they joined: they may join it still, or another."""
        self._counters: Counter[str] = Counter()
        self._drains = False

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                if seen.request.is_background:
                    self._background |= seen.names
                else:
                    self._arrived |= dict.fromkeys(sorted(seen.names), seen.at)
            case Steered(kind="pause"):
                # Whoever waits leaves its group at once, and a resume does not bring it back.
                self._leave(self._group - self._running)
                self._strayed |= self._paused_newcomers()
                self._awaited -= self._strayed
            case Steered(kind="drain"):
                self._drains = True
            case Planned():
                self._planned(seen)
            case Happened():
                self._happened(seen)
            case Fetched(item=Ending() as ending):
                self._answered(seen.request.id, ending)

    def _happened(self, seen: Happened) -> None:
        if seen.method == "fail":
            self._running.clear()
            self._leave(self._group)
        for event in seen.events:
            if isinstance(event, PreemptEvent):
                self._lost_again((event.request_id, event.index))
            if isinstance(event, FinishEvent):
                self._forget((event.request_id, event.index))

    def _lost_again(self, name: Name) -> None:
        """One that started and was preempted in the same plan is of the group all the same."""
        if name not in self._has_run | self._background:
            self._has_run.add(name)
            self._group.add(name)
            self._take_places(1)
            self._awaited.discard(name)

    @property
    def _is_grouped(self) -> bool:
        return self._settings.strategy is not Strategy.CONTINUOUS

    def _forget(self, name: Name) -> None:
        self._arrived.pop(name, None)
        self._background.discard(name)
        self._has_run.discard(name)
        self._running.discard(name)
        self._group.discard(name)
        self._awaited.discard(name)

    def _planned(self, seen: Planned) -> None:
        running = set(seen.owners.values()) - self._background
        newcomers = {
            name: at
            for name, at in self._arrived.items()
            if name not in self._has_run and not self._pauses.is_paused(name)
        }
        starts = running & set(newcomers)
        if self._is_grouped:
            self._groups(seen, running, starts, newcomers)
        else:
            self._window(seen, running, starts, newcomers)
        if not seen.owners and seen.batch is None and not self._disk.was_busy(seen.at):
            self._idle(seen.at, newcomers)
        self._has_run |= running
        self._running = running
        self._counters = Counter(seen.snapshot.counters)

    def _groups(
        self, seen: Planned, running: set[Name], starts: set[Name], newcomers: Arrivals
    ) -> None:
        # Whoever was paused has left its group as soon as its batch had returned.
        self._leave(self._group - running)
        awaited = self._awaited & set(newcomers)
        if not self._group and running and not awaited:
            self._group_number += 1
            is_rest = bool(starts) and starts <= self._here and len(starts) <= self._places
            is_rest |= bool(starts) and starts <= self._strayed
            if not is_rest or self._departs(seen, newcomers):
                self._start(seen, newcomers)
            # They may be the rest of the last group, of which nobody else is left.
            self._places_least *= not is_rest
            if starts - self._strayed and not self._places:
                raise Violation(NAME, f"a group departs with {len(newcomers)} before its time")
        self._take_places(min(len(starts), self._places) if starts & self._strayed else len(starts))
        if self._places < 0 or not starts <= self._here:
            raise Violation(NAME, f"{sorted(starts)[0]} joins a group that has departed")
        left = (self._here & set(newcomers)) - starts
        free = {name for name in left if self._oracle.request(name).share is None}
        self._places *= bool(left)
        self._has_begun = self._has_begun or bool(starts)
        is_awaited = self._has_begun and self._places_least > 0
        self._awaited = free - self._strayed if is_awaited else set()
        for request_id, _ in running - self._group:
            self._group_of[request_id] = self._group_number
        self._group |= running

    def _start(self, seen: Planned, newcomers: Arrivals) -> None:
        """A group departs, if it may: those who are here may fill it."""
        departs, most = self._departs(seen, newcomers), self._settings.max_num_seqs
        free = [name for name in newcomers if self._oracle.request(name).share is None]
        self._places = min(len(newcomers), most) * departs
        self._places_least = min(len(free), self._least(seen)) * departs
        self._here = set(self._arrived)
        self._has_begun = False
        self._strayed = self._paused_newcomers()

    def _paused_newcomers(self) -> set[Name]:
        paused = {name for name in self._arrived if self._pauses.is_paused(name)}
        return paused - self._has_run

    def _take_places(self, count: int) -> None:
        self._places -= count
        self._places_least -= count

    def _leave(self, names: set[Name]) -> None:
        self._group -= {name for name in names if self._pauses.is_paused(name)}

    def _departs(self, seen: Planned, newcomers: Arrivals) -> bool:
        """Whether newcomers may form a group."""
        is_lone = self._settings.min_batch_size == 1
        least = self._least(seen) if is_lone else self._enough(self._settings.max_num_seqs)
        return len(newcomers) >= least or self._is_over(seen.at, newcomers)

    def _least(self, seen: Planned) -> int:
        """How many a group may have at least."""
        settings, fit = self._settings, seen.snapshot.fit
        if settings.strategy is Strategy.ADAPTIVE and fit:
            return worth_it(settings.stall_s_target, settings.max_num_seqs, fit)
        return settings.max_num_seqs

    def _window(
        self, seen: Planned, running: set[Name], starts: set[Name], newcomers: Arrivals
    ) -> None:
        counters = seen.snapshot.counters
        was_closed = counters["window_waits"] > self._counters["window_waits"]
        # Those of a tenant with a share may be held back, and do not end the window then.
        free = {name: at for name, at in newcomers.items() if self._share_of(name) is None}
        if was_closed and free and self._is_over(seen.at, free):
            raise Violation(NAME, f"{min(free)} waits for longer than the window")
        # Where somebody was sent back in this plan, the places before it are not known.
        is_known = all(counters[name] == self._counters[name] for name in PREEMPTIONS)
        if not starts or not is_known or self._is_over(seen.at, self._without_full(newcomers)):
            return
        enough = self._enough(self._settings.max_num_seqs - len(running - starts))
        if len(newcomers) < enough:
            raise Violation(NAME, f"{len(newcomers)} of {enough} join before the end")

    def _enough(self, places: int) -> int:
        """Newcomers who end a window early, or fill a group."""
        least = self._settings.min_batch_size
        return min(least, places) if least > 1 else places

    def _idle(self, at: float, newcomers: Arrivals) -> None:
        """Nobody runs and nothing is done: then somebody must be waited for."""
        for name in self._arrived:
            if name in self._has_run and not self._pauses.is_paused(name):
                raise Violation(NAME, f"{name} ran before, and is kept out though nobody runs")
        for name in self._background:
            if not self._pauses.is_paused(name):
                raise Violation(NAME, f"{name} is behind all others, and nobody runs")
        if self._awaited:
            raise Violation(
                NAME, f"{min(self._awaited)} is of the group, is kept out, and nobody runs"
            )
        is_enough = len(newcomers) >= self._enough(self._settings.max_num_seqs)
        if newcomers and (is_enough or self._is_over(at, newcomers)):
            raise Violation(NAME, f"{min(newcomers)} is kept out, and nobody runs")

    def _is_over(self, at: float, newcomers: Arrivals) -> bool:
        wait_s = self._settings.wait_s
        if self._drains:
            return True
        return wait_s is not None and min(newcomers.values(), default=at) + wait_s <= at

    def _without_full(self, newcomers: Arrivals) -> Arrivals:
        """Those whose tenants may run one more."""
        # Whoever was paused while it ran has given its place back by now.
        running = [name for name in self._running if not self._pauses.is_paused(name)]
        counts = Counter(self._oracle.request(name).tenant for name in running)
        found = {}
        for name, at in newcomers.items():
            share = self._share_of(name)
            if share is None or counts[self._oracle.request(name).tenant] < share:
                found[name] = at
        return found

    def _share_of(self, name: Name) -> int | None:
        share = self._oracle.request(name).share
        return None if share is None else share.running_max

    def _answered(self, request_id: RequestId, ending: Ending) -> None:
        if self._settings.group_answers is GroupAnswers.EACH or ending.error is not None:
            return
        was_cancelled = ending.answer is not None and ending.answer.was_cancelled
        if was_cancelled or not self._is_grouped:
            return
        number = self._group_of.get(request_id)
        left = self._group | self._awaited
        if number == self._group_number and left:
            raise Violation(NAME, f"{request_id} is answered before {sorted(left)[0]}")


def worth_it(target_s: float, places: int, fit: Fit) -> int:
    """The size of a group whose ticks take the target or half a full one's, by trial of each.

    A size at less than nine tenths of the rate of a full group is not worth it. Where a hair
    decides whether a size is quick enough, it is the smaller of the two.
    """
    full_s = fit.seconds(places)
    if full_s <= target_s:
        return places
    limit_s = max(target_s, full_s / 2)
    sizes = {_largest(limit_s * hair, places, fit) for hair in (1 - HAIR, 1 + HAIR)} - {0}
    rate_s = (0.9 - HAIR) * places
    return min(
        (size for size in sizes if size * full_s >= rate_s * fit.seconds(size)), default=places
    )


def _largest(limit_s: float, places: int, fit: Fit) -> int:
    """The most sequences below all places that take no longer; 0 for none."""
    return max((size for size in range(1, places) if fit.seconds(size) <= limit_s), default=0)
