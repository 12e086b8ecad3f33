"""A request of a fleet, and what its caller and the observers are told of it: `Accounts`.

Each request is accepted once and ends once, however many engines run it (invariants 1 and 7). The
event loop of the fleet.

Tests: tests/unit/cluster/test_accounts.py and test_fleet.py.
"""

import asyncio
from dataclasses import dataclass, field, replace

from jitney.core.request import Request
from jitney.engine.answer import Answer, Ending
from jitney.engine.clock import Clock
from jitney.engine.collector import READ_TOO_SLOWLY
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers, record_accepted, record_done
from jitney.engine.stats import Statistics
from jitney.errors import DeadlineExceeded, JitneyError, QueueFull
from jitney.records import (
    MoveReason,
    Record,
    ReplicaGone,
    RequestFailed,
    RequestMoved,
    RequestProgressed,
    RequestRefused,
    RequestStarted,
)
from jitney_cluster.progress import Progress
from jitney_cluster.replica_messages import Ended, Started
from jitney_cluster.routing import Head

PROGRESS_S = 0.5
"""How often observers are told of a request's tokens: not for each token."""


PLACE_S_MAX = 120.0
"""How long a request waits for a replica that takes it, at the beginning and after a loss."""


@dataclass(slots=True, eq=False)
class MovingRequest:
    """A request of this ingress. Times are seconds on the fleet's clock."""

    request: Request
    mailbox: Mailbox
    progress: Progress
    arrived_at: float
    sent_at: float
    head: Head = field(init=False)
    """The beginning of what its next replica has to compute."""
    attempt: int = 0
    number: int = 0
    """That of the order of this attempt."""
    has_begun: bool = False
    """Whether a token of this attempt has come."""
    replica: str | None = None
    """Where it was accepted; None on its way."""
    over: "asyncio.Future[Ended | None]" = field(init=False)
    """The end of this attempt: what the replica told last, or None if it is lost."""
    task: "asyncio.Task[None]" = field(init=False)
    unplaced_at: float | None = None
    """Since when no replica has it."""
    home: str = ""
    """The replica that accepted it last."""
    was_lost: bool = False
    """Whether that one was lost since."""
    progress_due_at: float = 0.0
    """When observers are told of its tokens again."""
    is_accepted: bool = False
    is_started: bool = False
    full: dict[str, QueueFull] = field(default_factory=dict)
    """Replicas that had no room for it, since it last ran."""
    is_suspect: bool = False
    """Whether it lost so many replicas that it runs only while no other such one does."""
    was_read_too_slowly: bool = False

    @property
    def is_placed(self) -> bool:
        """Whether a replica has it."""
        return self.unplaced_at is None

    def left_s(self, now: float, limit_s: float | None) -> float | None:
        """Seconds until its deadline, if it or the server has one. Raises DeadlineExceeded."""
        limit_s = self.request.request_timeout_s or limit_s
        if limit_s is None:
            return None
        left_s = limit_s - (now - self.sent_at)
        if left_s <= 0:
            raise DeadlineExceeded("The request passed its deadline.")
        return left_s

    def wait_left_s(self, now: float, limit_s: float | None) -> float | None:
        """Seconds that it may still wait for its first slot, if there is a limit and it waits.

        Raises DeadlineExceeded.
        """
        if self.request.queue_timeout_s is not None:
            limit_s = self.request.queue_timeout_s
        if limit_s is None or self.is_started:
            return None
        left_s = limit_s - (now - self.sent_at)
        if left_s <= 0:
            raise DeadlineExceeded(
                f"The request did not run within {limit_s:g} s, its limit for waiting; raise the "
                "limit, or try again later."
            )
        return left_s

    def check_place(self, now: float) -> None:
        """Raise QueueFull if no replica has taken it for too long."""
        if now - self.lose_place(now) >= PLACE_S_MAX:
            reason = next((f" ({each})" for each in self.full.values()), "")
            raise QueueFull(
                f"No replica took the request within {PLACE_S_MAX:g} s{reason}; try again later.",
                PLACE_S_MAX,
            )

    def find_full(self, error: QueueFull) -> None:
        """Its replica has no room: another one is to be tried. Raises when all were tried."""
        # It is asked a second time only where no other is left.
        was_tried = self.replica in self.full
        self.full[self.replica or ""] = error
        if self.replica is None or was_tried:
            retry_s = min(each.retry_after_s for each in self.full.values())
            raise QueueFull(
                f"Every replica has as many requests as it takes; try again in {retry_s:.1f} s.",
                retry_s,
            )

    def lose_place(self, now: float) -> float:
        """No replica has it; since when."""
        if self.unplaced_at is None:
            self.unplaced_at = now
        return self.unplaced_at


class Accounts:
    """Tells callers and observers, and counts."""

    def __init__(self, statistics: Statistics, observers: Observers, clock: Clock) -> None:
        self._statistics = statistics
        self._observers = observers
        self._clock = clock

    def accept(self, live: MovingRequest) -> None:
        """A replica has taken it."""
        assert live.replica is not None, "a replica said so"
        now = self._clock.now()
        away_s = 0.0 if live.unplaced_at is None else now - live.unplaced_at
        before, live.home = live.home, live.replica
        live.full.clear()
        live.unplaced_at = None
        if live.is_accepted:
            self._move(live, before, away_s)
        else:
            live.is_accepted = True
            self._record(record_accepted(live.request, live.arrived_at, live.sent_at, now))
            live.mailbox.accept()

    def start(self, live: MovingRequest, message: Started) -> None:
        """It runs on a replica."""
        live.progress.start(self._clock.now() - live.arrived_at)
        if not live.is_started:
            live.is_started = True
            now = self._clock.now()
            self._record(
                RequestStarted(
                    at=now,
                    request_id=live.request.id,
                    prompt_tokens=len(live.request.prompt),
                    prefix_cache_tokens=message.cached_count,
                    waited_ms=(now - live.sent_at) * 1e3,
                    replica=live.home,
                )
            )

    def progress(self, live: MovingRequest, now: float) -> None:
        """It has new tokens. Called when `progress_due_at` has come."""
        count = live.progress.token_count
        if count:
            live.progress_due_at = now + PROGRESS_S
            self._record(
                RequestProgressed(
                    at=now,
                    request_id=live.request.id,
                    generated_tokens=count,
                    token_gaps_s=live.progress.take_gaps(),
                )
            )

    def lose(self, replica: str) -> None:
        """A replica is gone."""
        self._record(ReplicaGone(at=self._clock.now(), replica=replica))

    def end(self, live: MovingRequest, answer: Answer) -> None:
        """It was answered."""
        self._tell_rest(live)
        self._record(record_done(answer, self._clock.now()))
        live.mailbox.end(Ending(answer))

    def end_cancelled(self, live: MovingRequest) -> None:
        """Its caller left, or reads too slowly."""
        if live.mailbox.ending is not None:
            return
        answer = live.progress.answer(self._clock.now() - live.arrived_at)
        if live.was_read_too_slowly:
            completions = tuple(
                replace(each, message=READ_TOO_SLOWLY) for each in answer.completions
            )
            answer = replace(answer, completions=completions)
        if live.is_accepted:
            self.end(live, answer)
        else:
            live.mailbox.end(Ending(answer))

    def fail(self, live: MovingRequest, error: JitneyError) -> None:
        """It ends with an error."""
        if live.mailbox.ending is not None:
            return
        now = self._clock.now()
        if live.is_accepted:
            self._tell_rest(live)
            self._record(
                RequestFailed(
                    at=now,
                    request_id=live.request.id,
                    error=error,
                    generated_tokens=live.progress.token_count,
                    duration_ms=(now - live.arrived_at) * 1e3,
                )
            )
        else:
            self._record(RequestRefused(at=now, request_id=live.request.id, error=error))
        answer = live.progress.answer(now - live.arrived_at) if live.is_accepted else None
        live.mailbox.end(Ending(answer, error))

    def _tell_rest(self, live: MovingRequest) -> None:
        """It ends: tell the times between tokens that were not told yet."""
        if live.progress.has_gaps:
            self.progress(live, self._clock.now())

    def _move(self, live: MovingRequest, before: str, away_s: float) -> None:
        """Another replica has accepted it."""
        reason = MoveReason.LOST if live.was_lost else MoveReason.LEFT
        live.was_lost, live.progress_due_at = False, 0.0
        self._record(
            RequestMoved(
                at=self._clock.now(),
                request_id=live.request.id,
                from_replica=before,
                to_replica=live.home,
                generated_tokens=live.progress.token_count,
                reason=reason,
                away_ms=away_s * 1e3,
            )
        )

    def _record(self, record: Record) -> None:
        self._statistics.take(record)
        self._observers.tell(record)
