"""Which requests are paused, and when they were: kept from what was asked of the engine."""

from dataclasses import dataclass

from jitney.core.limits import PAUSE_S_MAX
from jitney.core.request import RequestId
from tests.simulation.seen import Happened, Seen, Steered, Submitted


@dataclass(slots=True)
class Pause:
    """From when, and until when; None while it lasts."""

    start: float
    end: float | None = None


class Pauses:
    """Follows pauses, resumes, the end of those that lasted too long, and a drain."""

    def __init__(self) -> None:
        self._pauses: dict[RequestId, list[Pause]] = {}
        self._accepted: set[RequestId] = set()
        self._drains = False

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                self._accepted.add(seen.request.id)
            case Steered(kind="pause") if seen.request_id in self._accepted:
                if not self._drains and not self.is_paused(seen.request_id):
                    self._pauses.setdefault(seen.request_id, []).append(Pause(seen.at))
            case Steered(kind="resume"):
                self._end([seen.request_id], seen.at)
            case Steered(kind="drain"):
                self._drains = True
                self._end(list(self._pauses), seen.at)
            case Happened(method="expire"):
                self._end(
                    [
                        request_id
                        for request_id, pauses in self._pauses.items()
                        if pauses[-1].start + PAUSE_S_MAX <= seen.at
                    ],
                    seen.at,
                )

    def is_paused(self, request_id: RequestId) -> bool:
        """Whether it is paused now."""
        pauses = self._pauses.get(request_id)
        return pauses is not None and pauses[-1].end is None

    def was_paused(self, request_id: RequestId, at: float) -> bool:
        """Whether it was paused at this moment."""
        return any(
            each.start <= at and (each.end is None or at <= each.end)
            for each in self._pauses.get(request_id, ())
        )

    def _end(self, request_ids: list[RequestId], at: float) -> None:
        for request_id in request_ids:
            if self.is_paused(request_id):
                self._pauses[request_id][-1].end = at
