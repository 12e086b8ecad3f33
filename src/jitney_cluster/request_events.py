"""What callers and observers of a request get: `RequestEvents`. The event loop of the fleet.

Each request is accepted once and ends once, however many engines run it (invariants 1 and 7).
"""

from jitney import records
from jitney.engine.answer import Answer, Ending
from jitney.engine.clock import Clock
from jitney.engine.observe import Observers, record_accepted, record_done
from jitney.engine.stats import Statistics
from jitney.errors import JitneyError
from jitney_cluster.cluster_request import ClusterRequest
from jitney_cluster.replica_messages import OrderStarted

PROGRESS_S = 0.5
"""How often observers get the number of a request's tokens: not for each token."""


class RequestEvents:
    """Informs callers and observers, and counts."""

    def __init__(self, statistics: Statistics, observers: Observers, clock: Clock) -> None:
        self._statistics = statistics
        self._observers = observers
        self._clock = clock

    def accept(self, live: ClusterRequest) -> None:
        """A replica has taken it."""
        assert live.replica is not None, "a replica sent the message"
        now = self._clock.now()
        away_s = 0.0 if live.unplaced_at is None else now - live.unplaced_at
        before, live.home = live.home, live.replica
        live.full.clear()
        live.unplaced_at = None
        if live.is_accepted:
            self._move(live, before, away_s)
        else:
            self._accept_first(live)

    def start(self, live: ClusterRequest, message: OrderStarted) -> None:
        """It runs on a replica. Observers get that once."""
        is_first, now = not live.is_started, self._clock.now()
        live.start(now)
        if is_first:
            self._record(
                records.RequestStarted(
                    at=now,
                    request_id=live.request.id,
                    prompt_tokens=len(live.request.prompt),
                    prefix_cache_tokens=message.cached_count,
                    waited_ms=(now - live.sent_at) * 1e3,
                    replica=live.home,
                )
            )

    def progress(self, live: ClusterRequest, now: float) -> None:
        """It has new tokens. Called when `progress_due_at` has come."""
        count = live.token_count
        if count:
            live.progress_due_at = now + PROGRESS_S
            gaps_s, live.gaps_s = tuple(live.gaps_s), []
            self._record(
                records.RequestProgressed(
                    at=now, request_id=live.request.id, generated_tokens=count, token_gaps_s=gaps_s
                )
            )

    def lose(self, replica: str) -> None:
        """A replica is gone."""
        self._record(records.ReplicaGone(at=self._clock.now(), replica=replica))

    def end(self, live: ClusterRequest, answer: Answer) -> None:
        """It was answered."""
        self._record_gaps(live)
        self._record(record_done(answer, self._clock.now()))
        live.mailbox.end(Ending(answer))

    def end_cancelled(self, live: ClusterRequest) -> None:
        """Its caller left, or reads too slowly."""
        if live.mailbox.ending is not None:
            return
        if not live.is_accepted:
            # No replica has taken it yet. Who counts what is live has to see an end.
            self._accept_first(live)
        self.end(live, live.answer(self._clock.now()))

    def fail(self, live: ClusterRequest, error: JitneyError) -> None:
        """It ends with an error."""
        if live.mailbox.ending is not None:
            return
        now = self._clock.now()
        if not live.is_accepted:
            self._record(records.RequestRefused(at=now, request_id=live.request.id, error=error))
            live.mailbox.end(Ending(None, error))
            return
        self._record_gaps(live)
        self._record(
            records.RequestFailed(
                at=now,
                request_id=live.request.id,
                error=error,
                generated_tokens=live.token_count,
                duration_ms=(now - live.arrived_at) * 1e3,
            )
        )
        live.mailbox.end(Ending(live.answer(now), error))

    def _accept_first(self, live: ClusterRequest) -> None:
        live.is_accepted = True
        now = self._clock.now()
        self._record(record_accepted(live.request, live.arrived_at, live.sent_at, now))
        live.mailbox.accept()

    def _record_gaps(self, live: ClusterRequest) -> None:
        """It ends: observers get the times between tokens that they have not got yet."""
        if live.gaps_s:
            self.progress(live, self._clock.now())

    def _move(self, live: ClusterRequest, before: str, away_s: float) -> None:
        """Another replica has accepted it."""
        reason = records.MoveReason.LOST if live.was_lost else records.MoveReason.LEFT
        live.was_lost, live.progress_due_at = False, 0.0
        self._record(
            records.RequestMoved(
                at=self._clock.now(),
                request_id=live.request.id,
                from_replica=before,
                to_replica=live.home,
                generated_tokens=live.token_count,
                reason=reason,
                away_ms=away_s * 1e3,
            )
        )

    def _record(self, record: records.Record) -> None:
        self._statistics.take(record)
        self._observers.tell(record)
