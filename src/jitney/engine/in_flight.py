"""`Flights`: batches that are under way, from their launch until their outcome is at hand.

Called by the tick, on the engine thread. There is one at a time, or two where the backend computes
in another process: the second then lies there when the first is done, and nothing stands still
while the engine takes in an outcome and plans. It is sent late, so that whoever arrives while the
first is computed can still be part of it, and only where the time of the first can be told.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from jitney.core.backend import Backend, QueueingBackend
from jitney.core.batch import Batch, Outcome
from jitney.core.request import RequestId
from jitney.core.snapshot import Occupant
from jitney.engine.collector import Collector
from jitney.engine.records import Member
from jitney.errors import BackendCrashed

LEAD_SHARE = 0.15
LEAD_S_MIN = 0.002
"""How long before the end of the first the second is planned, in times of the first and at least:
a pass may be faster than the last one was, and planning and sending take a moment."""

LIKE_SHARE = 0.125
"""How much larger or smaller than the last a batch may be for its time to be told from it."""


@dataclass(slots=True)
class Launch:
    """One batch under way, and whose completions stood in which slots when it was planned."""

    batch: Batch
    occupants: Mapping[int, Occupant]
    collectors: Mapping[int, Collector]
    left_at: float
    error: Exception | None = None
    """Why it did not get away."""

    def members(self, outcome: Outcome, live: Mapping[RequestId, Collector]) -> tuple[Member, ...]:
        """Who was in the batch, by how the slots stood when it was planned; not those who have
        ended since: nobody gets what was computed for them."""
        members = []
        for entry, sample in zip(self.batch.entries, outcome.samples, strict=True):
            collector = self.collectors[entry.slot]
            request_id, index = collector.request.id, self.occupants[entry.slot].index
            # An id may be taken again as soon as its request has ended.
            if live.get(request_id) is not collector or collector.is_finished(index):
                continue
            samples = sample.token is not None and sample.fault is None
            members.append(
                Member(request_id, index, entry.slot, entry.start, entry.length, samples)
            )
        return tuple(members)


@dataclass(frozen=True, slots=True)
class Lost:
    """A batch that has no outcome, and why."""

    error: Exception

    @property
    def was_reached(self) -> bool:
        """Whether the backend saw it."""
        return not isinstance(self.error, BackendCrashed) or self.error.was_reached


class Flights:
    """What was sent to one backend and has not come back, the oldest first."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._queueing = backend if isinstance(backend, QueueingBackend) else None
        self._launches: deque[Launch] = deque()
        self._last_tokens = 0
        self._last_s = 0.0
        self._landed_at = 0.0

    def __len__(self) -> int:
        return len(self._launches)

    @property
    def oldest(self) -> Launch:
        """The one that lands next."""
        return self._launches[0]

    def launch(self, launched: Launch) -> None:
        """Send a batch. What goes wrong is told when it would land, in its turn."""
        self._launches.append(launched)
        if self._queueing is not None:
            try:
                self._queueing.send(launched.batch)
            except Exception as error:
                launched.error = error

    @property
    def begun_at(self) -> float:
        """When the oldest was begun with: when it was sent, or when the one before it was done."""
        return max(self.oldest.left_at, self._landed_at)

    def spare_s(self, now: float) -> float | None:
        """How long to wait for the one under way before another is sent; None: send none."""
        if self._queueing is None or len(self._launches) != 1 or self.oldest.error is not None:
            return None
        token_count = self.oldest.batch.token_count
        if abs(token_count - self._last_tokens) > LIKE_SHARE * token_count:
            return None
        lead_s = max(LEAD_SHARE * self._last_s, LEAD_S_MIN)
        return max(0.0, self._last_s - lead_s - (now - self.begun_at))

    def land(self, limit_s: float | None = None) -> Outcome | Lost | None:
        """What became of the oldest; None when it is not back within the limit.

        When it is, whoever takes it says when (`note_landed`).
        """
        launched = self.oldest
        try:
            outcome = self._outcome(launched, limit_s)
        except Exception as error:
            # Whatever comes out of a backend, the sequences can be resumed without it.
            self._launches.popleft()
            return Lost(error)
        if outcome is None:
            return None
        self._launches.popleft()
        self._last_tokens, self._last_s = launched.batch.token_count, outcome.seconds
        return outcome

    def note_landed(self, now: float) -> None:
        """The outcome that was just landed is being taken in."""
        self._landed_at = now

    def forget(self) -> None:
        """None of them will come back: the backend is lost, and is reset before it is used."""
        self._launches.clear()
        self._last_tokens = 0

    def _outcome(self, launched: Launch, limit_s: float | None) -> Outcome | None:
        if launched.error is not None:
            raise launched.error
        if self._queueing is None:
            return self._backend.execute(launched.batch)
        return self._queueing.receive(limit_s)
