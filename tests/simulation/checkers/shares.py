"""No tenant holds more than its share: of the queue when it brings more, of the places ever.

Who has nothing waiting may bring one request of any size. What was sent back to wait stays, and
counts; what is paused does not, nor what runs behind all others. A tenant's tokens are those of its
prompts and those that it was told of.
"""

from collections import Counter

from jitney.core.events import FinishEvent
from jitney.core.request import Request
from tests.simulation.pauses import Pauses
from tests.simulation.seen import Happened, Name, Planned, Seen, Submitted, TokenEvent, Violation

NAME = "shares"


class SharesChecker:
    """Knows whose sequences live, and which of them run."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._live: dict[Name, Request] = {}
        self._made: Counter[Name] = Counter()
        self._running: set[Name] = set()

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                if not self.has_room(seen.request):
                    raise Violation(
                        NAME, f"{seen.request.id} of {seen.request.tenant} is beyond its share"
                    )
                self._live |= dict.fromkeys(seen.names, seen.request)
            case Planned():
                self._running = set(seen.owners.values())
                self._count_running()
            case Happened():
                self._take(seen)

    def has_room(self, request: Request) -> bool:
        """Whether its tenant may bring this request, as things stand."""
        waiting = [
            name
            for name, each in self._live.items()
            if each.tenant == request.tenant
            and not each.is_background
            and name not in self._running
            and not self._pauses.is_paused(name)
        ]
        if request.share is None or not waiting:
            return True
        tokens = sum(len(self._live[name].prompt) + self._made[name] for name in waiting)
        count = request.params.n
        return (
            len(waiting) + count <= request.share.waiting_max
            and tokens + count * len(request.prompt) <= request.share.waiting_tokens_max
        )

    def _take(self, seen: Happened) -> None:
        if seen.method == "fail":
            self._running.clear()
        for event in seen.events:
            match event:
                case TokenEvent():
                    self._made[event.request_id, event.index] += 1
                case FinishEvent():
                    name = (event.request_id, event.index)
                    self._live.pop(name, None)
                    self._running.discard(name)
                    del self._made[name]

    def _count_running(self) -> None:
        running = [self._live[name] for name in self._running if name in self._live]
        counts = Counter(each.tenant for each in running if not each.is_background)
        for name in self._running:
            request = self._live.get(name)
            if request is None or request.share is None:
                continue
            if counts[request.tenant] > request.share.running_max:
                raise Violation(
                    NAME,
                    f"{request.tenant} runs {counts[request.tenant]} sequences, and its share is "
                    f"{request.share.running_max}",
                )
