"""One ingress of a simulated fleet: `Ingress`, which does what `ReplicaFleet` does, without I/O.

Where a request runs is decided by the production router; what its caller has, what the next replica
has to do and whether it may go on, by the production `ClusterRequest`. The rest is here as it is in
`jitney_cluster.attempts`: tries after a refusal, moves after a loss, one suspect at a time,
deadlines and cancels at any moment.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from jitney.core.events import FinishEvent, FinishReason, StartEvent
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Completion, Delta, Usage
from jitney.engine.mailbox import Mailbox
from jitney.errors import DeadlineExceeded, JitneyError, QueueFull
from jitney_cluster.attempts import RESULT_GRACE_S
from jitney_cluster.cluster_request import PLACE_S_MAX, ClusterRequest, Verdict
from jitney_cluster.replica_messages import OrderEnded
from jitney_cluster.routing import ReplicaReport
from tests.completions_for_tests import COMPLETION
from tests.simulation.fleet.checks import End, FleetChecks
from tests.simulation.fleet.model import DELTAS
from tests.simulation.fleet.orders import HOP_S, FleetRequest, Later, Line, Order
from tests.simulation.fleet.replica import SimulatedReplica
from tests.simulation.fleet.routers import FleetRouter
from tests.simulation.fleet.traffic import Asked
from tests.simulation.seen import TokenEvent, Violation

_NO_CALLER = Mailbox()


class Ingress:
    """The requests of some callers, and the replicas as it knows them."""

    def __init__(
        self,
        name: str,
        router: FleetRouter,
        replicas: Mapping[str, SimulatedReplica],
        settings: SchedulerSettings,
        later: Later,
        checks: FleetChecks,
    ) -> None:
        self.name = name
        self.router = router
        self._replicas = replicas
        """All that ever were; the router knows which of them are there."""
        self._settings = settings
        self._later = later
        self._checks = checks
        self.live: dict[int, FleetRequest] = {}
        self._number = 0
        self._suspect: FleetRequest | None = None
        self._suspects: deque[FleetRequest] = deque()
        """They wait until the suspect that runs has ended or lost its replica."""
        self._unplaced: list[FleetRequest] = []

    def begin(self, asked: Asked, now: float) -> None:
        """A caller asks."""
        request = asked.request
        state = ClusterRequest(request, _NO_CALLER, self._settings, now, now)
        state.update_head()
        live = FleetRequest(asked, state, [[] for _ in range(request.params.n)])
        self.live[asked.number] = live
        self._checks.began(live)
        if request.request_timeout_s is not None:
            self._later(now + request.request_timeout_s, self._expire, live)
        if asked.cancel_at is not None:
            self._later(asked.cancel_at, self.cancel, live)
        self._attempt(live, now)

    def cancel(self, live: FleetRequest, now: float) -> None:
        """Its caller left."""
        if not live.is_over:
            self._checks.marks["cancelled as a suspect"] += live in self._suspects
            self._end(live, End.CANCELLED, now)

    def joined(self, name: str, now: float) -> None:
        """A new replica is there."""
        if not self._replicas[name].is_dead:
            self.router.keep([*self.router.replicas, name])
            unplaced, self._unplaced = self._unplaced, []
            for live in unplaced:
                self._attempt(live, now)

    def lost(self, name: str, now: float) -> None:
        """A replica is known to be gone: what ran there goes on elsewhere."""
        self.router.keep([each for each in self.router.replicas if each != name])
        for live in list(self.live.values()):
            if live.order is not None and live.order.replica == name:
                self._move(live, now)

    def notice_cut(self, line: Line, now: float) -> None:
        """A connection has ended: what a replica took over it is lost."""
        line.is_noticed = True
        for live in list(self.live.values()):
            order = live.order
            if order is not None and order.line is line and order.is_accepted:
                self._move(live, now)

    def reported(self, name: str, report: ReplicaReport, now: float) -> None:
        """A report has come."""
        self.router.report(name, report)

    def accepted(self, order: Order) -> None:
        """A replica has taken an order."""
        order.is_accepted = True
        if order.live.order is order:
            order.live.state.full.clear()
            order.live.state.is_accepted = True

    def refused(self, order: Order, error: JitneyError, now: float) -> None:
        """A replica has no room: try another one, until all were tried."""
        live = order.live
        if live.order is not order:
            return
        if not isinstance(error, QueueFull):
            raise Violation("alone", f"request {live.asked.number} was turned away: {error}")
        self._leave(live)
        live.state.full[order.replica] = error
        if set(self.router.replicas) <= set(live.state.full):
            self._end(live, End.REFUSED, now)
        else:
            self._checks.marks["sent on by a full replica"] += 1
            self._attempt(live, now)

    def started(self, order: Order, event: StartEvent, now: float) -> None:
        """It runs."""
        if order.live.order is order:
            order.live.state.start(now)

    def received(self, order: Order, event: TokenEvent, now: float) -> None:
        """A token for the caller, unless the attempt was given up."""
        live = order.live
        if live.order is not order:
            self._checks.marks["token of an attempt that was given up"] += 1
            return
        if not order.has_begun:
            order.has_begun = True
            self.router.began(order.replica, order.number)
        live.state.take(DELTAS[event.index][event.token], now)
        live.received[event.index].append(event.token)
        live.lost_count = 0
        if live is self._suspect:
            # Its token shows that it is harmless.
            self._suspect = None
            self._next_suspect(now)

    def finished(self, order: Order, event: FinishEvent, now: float) -> None:
        """A completion has ended; with the last one the request has."""
        live = order.live
        if live.order is not order:
            return
        delta = Delta(
            index=event.index, text="", finish_reason=event.reason, stop_reason=event.stop_reason
        )
        live.state.take(delta, now)
        live.finished.add(event.index)
        live.is_late |= event.reason is FinishReason.DEADLINE
        order.completions.append(_completion(live, event))
        if len(order.completions) < len(order.request.resumed_tokens):
            return
        ended = OrderEnded(order.request.id, live.state.attempt, tuple(order.completions))
        live.state.take_results(ended)
        self._end(live, End.DEADLINE if live.is_late else End.FINISHED, now)

    def call_over(self, order: Order, now: float) -> None:
        """The call is over: its end may still be on its way, or it never comes."""
        self._later(now + RESULT_GRACE_S, self._give_up, order)

    def _give_up(self, order: Order, now: float) -> None:
        if order.live.order is order:
            self._checks.marks["call over, end not told"] += 1
            self._move(order.live, now)

    def _attempt(self, live: FleetRequest, now: float) -> None:
        """Send the request to a replica."""
        state = live.state
        name = self.router.choose(state.head, tuple(state.full))
        if name is None and state.full:
            # The others have left meanwhile.
            self._end(live, End.REFUSED, now)
            return
        if name is None:
            self._checks.marks["no replica at all"] += 1
            self._unplaced.append(live)
            self._later(now + PLACE_S_MAX, self._refuse_unplaced, live, state.attempt)
            return
        self._number += 1
        try:
            request = state.next_request(self._number, 1, now)
        except DeadlineExceeded:
            self._end(live, End.DEADLINE, now)
            return
        order = Order(self, live, self._number, request, name)
        live.order = order
        self._checks.sent(order)
        self.router.sent(name, order.call_id, order.number, state.head)
        self._later(now + HOP_S, self._replicas[name].receive, order)

    def _refuse_unplaced(self, live: FleetRequest, attempt: int, now: float) -> None:
        if not live.is_over and live in self._unplaced and live.state.attempt == attempt:
            self._end(live, End.REFUSED, now)

    def _move(self, live: FleetRequest, now: float) -> None:
        """Its replica is lost: it goes on, waits until it may, or fails."""
        self._leave(live)
        if live is self._suspect:
            self._suspect = None
        verdict = live.state.lose(now)
        live.lost_count += 1
        self._checks.moved(live, verdict)
        if verdict is Verdict.GO_ON:
            self._attempt(live, now)
        elif verdict is Verdict.ALONE:
            self._suspects.append(live)
        else:
            self._end(live, End.FAILED, now)
        self._next_suspect(now)

    def _next_suspect(self, now: float) -> None:
        """Let the next suspect run if none does."""
        if self._suspect is None and self._suspects:
            self._suspect = self._suspects.popleft()
            self._attempt(self._suspect, now)
        self._checks.marks["a suspect waits for another"] += len(self._suspects)

    def _expire(self, live: FleetRequest, now: float) -> None:
        """Its time is over, wherever it is."""
        if not live.is_over:
            self._checks.marks["late at the ingress"] += 1
            self._end(live, End.DEADLINE, now)

    def _leave(self, live: FleetRequest) -> None:
        """The attempt is over, as far as this ingress is concerned."""
        order, live.order = live.order, None
        if order is not None:
            self.router.ended(order.replica, order.call_id)

    def _end(self, live: FleetRequest, end: End, now: float) -> None:
        """It is over. Whoever still runs it is told to stop."""
        order = live.order
        self._leave(live)
        if order is not None and end is not End.FINISHED:
            self._later(now + HOP_S, self._replicas[order.replica].cancel, order)
        live.is_over = True
        del self.live[live.asked.number]
        if live in self._suspects:
            self._suspects.remove(live)
        if live in self._unplaced:
            self._unplaced.remove(live)
        self._checks.ended(live, end, now)
        if live is self._suspect:
            self._suspect = None
            self._next_suspect(now)


def _completion(live: FleetRequest, event: FinishEvent) -> Completion:
    """The result of a completion that ended there. Texts and tokens went before it."""
    return replace(
        COMPLETION,
        index=event.index,
        finish_reason=event.reason,
        stop_reason=event.stop_reason,
        usage=Usage(
            prompt_count=len(live.asked.request.prompt),
            completion_count=event.completion_count,
            cached_count=event.cached_count,
        ),
        preempted_count=event.preempted_count,
    )
