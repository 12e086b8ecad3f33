"""Which sequences are paused, and when they were: kept from what was asked of the engine.

A model of its own of the rules: how long all pauses of a sequence may last, and how many may be
paused at once, in all and of one tenant.
"""

from collections import Counter
from dataclasses import dataclass

from jitney.core.events import FinishEvent
from jitney.core.limits import PAUSE_S_MAX
from jitney.core.request import Request, RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from tests.simulation.seen import Happened, Name, Seen, Steered, Submitted

PART = 4
"""A quarter as many as may wait may be paused, one at least."""


@dataclass(slots=True)
class Pause:
    """From when, and until when; None while it lasts."""

    start: float
    end: float | None = None


class Pauses:
    """Follows pauses, resumes, the end of those that lasted too long, and a drain."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._count_max = max(1, settings.max_num_queued_reqs // PART)
        self._requests: dict[RequestId, Request] = {}
        self._live: set[Name] = set()
        self._pauses: dict[Name, list[Pause]] = {}
        self._paused: dict[Name, float] = {}
        """Those who are paused now, and when that ends by itself."""
        self._drains = False

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                self._requests[seen.request.id] = seen.request
                self._live |= seen.names
            case Steered(kind="pause") if not self._drains:
                names = {each for each in self._live if each[0] == seen.request_id}
                self._begin(sorted(names - set(self._paused)), seen.at)
            case Steered(kind="resume"):
                self._end([each for each in self._paused if each[0] == seen.request_id], seen.at)
            case Steered(kind="drain"):
                self._drains = True
                self._end(list(self._paused), seen.at)
            case Happened():
                if seen.method == "expire":
                    self._end(
                        [each for each, end in self._paused.items() if end <= seen.at], seen.at
                    )
                for event in seen.events:
                    if isinstance(event, FinishEvent):
                        self._live.discard((event.request_id, event.index))
                        self._end([(event.request_id, event.index)], seen.at)

    def is_paused(self, name: Name) -> bool:
        """Whether it is paused now."""
        return name in self._paused

    def was_paused(self, name: Name, at: float) -> bool:
        """Whether it was paused at this moment."""
        return any(
            each.start <= at and (each.end is None or at <= each.end)
            for each in self._pauses.get(name, ())
        )

    def was_ever_paused(self, name: Name) -> bool:
        """Whether it was paused at all."""
        return name in self._pauses

    def _begin(self, names: list[Name], at: float) -> None:
        """All of them or none; they are those of one request that are not paused yet."""
        if not names:
            return
        request = self._requests[names[0][0]]
        paused = [self._requests[each] for each, _ in self._paused]
        tenants = Counter(each.tenant for each in paused if not each.is_background)
        spent_s = {name: self._spent_s(name, at) for name in names}
        count, share = len(names), request.share
        if max(spent_s.values()) >= PAUSE_S_MAX or len(paused) + count > self._count_max:
            return
        if share is not None and tenants[request.tenant] + count > max(
            1, share.waiting_max // PART
        ):
            return
        for name in names:
            self._pauses.setdefault(name, []).append(Pause(at))
            # The same sums as the core's: others could round the other way.
            self._paused[name] = at + (PAUSE_S_MAX - spent_s[name])

    def _spent_s(self, name: Name, at: float) -> float:
        return sum((each.end or at) - each.start for each in self._pauses.get(name, ()))

    def _end(self, names: list[Name], at: float) -> None:
        for name in names:
            if self._paused.pop(name, None) is not None:
                self._pauses[name][-1].end = at
