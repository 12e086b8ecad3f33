"""One replica of a simulated fleet: a production scheduler, and a backend that only takes time.

A pass is planned when it begins and applied when it ends. What it made is told a moment later, when
the next one begins: a replica that dies in between has made tokens that nobody got.
"""

import random
from collections.abc import Callable, Iterable

from jitney.core.batch import Outcome, Sample
from jitney.core.events import Event, FinishEvent, FinishReason, StartEvent
from jitney.core.request import RequestId
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.errors import JitneyError
from jitney_cluster.routing import HEAD_STRIDES, ReplicaReport
from tests.simulation.fleet.checks import FleetChecks
from tests.simulation.fleet.model import EOS, SAMPLES, value_at
from tests.simulation.fleet.orders import HOP_S, Later, Line, Order
from tests.simulation.fleet.world import FleetWorld
from tests.simulation.seen import OneEvent, TokenEvent, one_by_one

_NO_TOKEN = Sample()
_ANSWERED = (FinishReason.STOP, FinishReason.LENGTH)


class SimulatedReplica:
    """It does something when it is due: ends a pass, or begins one."""

    def __init__(
        self, name: str, world: FleetWorld, slowness: float, later: Later, checks: FleetChecks
    ) -> None:
        self.name = name
        self.scheduler = Scheduler(world.settings, world.traits, (EOS,))
        self._world = world
        self._slowness = slowness
        self._later = later
        self._checks = checks
        self.killed: Callable[[SimulatedReplica, float], None] = lambda replica, now: None
        """Is called when something kills it from within."""
        self._lines: dict[str, Line] = {}
        self._cuts: dict[str, Line] = {}
        """The last connection to each ingress that broke."""
        self._seen: dict[str, int] = {}
        self.orders: dict[RequestId, Order] = {}
        self.sequence_count = 0
        self._outbox: list[tuple[Order, OneEvent]] = []
        self._planned: PlannedBatch | None = None
        self._pass_s = 0.0
        self._sleeps = True
        self._due_at: float | None = None
        self.is_dead = False
        self.is_doomed = False
        """Whether it dies at the end of a pass, with much to tell."""
        self._answered_count = 0
        self._busy_s = 0.0
        self._busy_since = 0.0
        self._families: set[tuple[str, int]] = set()
        """Scopes and first tokens of the prompts that have run here."""

    def receive(self, order: Order, now: float) -> None:
        """Take an order, or refuse it."""
        if self.is_dead:
            return
        ingress, request = order.ingress, order.request
        order.line = self._line(ingress.name, now)
        self._seen[ingress.name] = max(self._seen.get(ingress.name, 0), order.number)
        try:
            self.scheduler.submit(request, now)
        except JitneyError as error:
            told = (order,) if order.line.is_broken else (order, error)
            call = ingress.call_over if order.line.is_broken else ingress.refused
            self._later(now + HOP_S, call, *told)
            return
        if not self.orders:
            self._busy_since = now
        order.left_count = len(request.resumed_tokens)
        self.sequence_count += order.left_count
        self.orders[request.id] = order
        self._checks.accepted(order, self.sequence_count)
        if not order.line.is_broken:
            ingress.accepted(order)
        if self._sleeps:
            self._set_due(now)

    def cancel(self, order: Order, now: float) -> None:
        """The ingress does not want it any more."""
        if not self.is_dead and self.orders.get(order.request.id) is order:
            self._note(self.scheduler.cancel(order.request.id, now), now)
            if self._sleeps:
                self._set_due(now)

    def cut(self, ingress: str, now: float) -> Line:
        """Break the connection to an ingress. Nobody knows it yet."""
        line = self._line(ingress, now)
        line.is_broken = True
        self._cuts[ingress] = line
        return line

    def notice_cut(self, ingress: str, line: Line, now: float) -> None:
        """The connection is known to be broken: what it was for ends."""
        if self.is_dead or self._lines.get(ingress) is not line:
            return
        del self._lines[ingress]
        for order in [each for each in self.orders.values() if each.line is line]:
            self.cancel(order, now)
            self._later(now + HOP_S, order.ingress.call_over, order)

    def die(self, now: float, draw: random.Random) -> None:
        """It is gone, with what it had to tell; a part of that may just have been sent."""
        events = [event for _, event in self._outbox]
        # Often between a last token and its end.
        ends = [at for at, event in enumerate(events) if type(event) is FinishEvent]
        places = draw.choice((ends or [0], range(len(events) + 1)))
        told_count = draw.choice(places)
        self._checks.untold(events[told_count:])
        self._tell(self._outbox[:told_count], now)
        self._outbox = []
        self._due_at = None
        self.orders = {}
        self.is_dead = True

    def report(self, now: float) -> ReplicaReport:
        """Its state for the routers."""
        busy_s = self._busy_s + (now - self._busy_since if self.orders else 0.0)
        ends_per_s = self._answered_count / busy_s if busy_s else 0.0
        heads = self.scheduler.heads(HEAD_STRIDES)
        return ReplicaReport.of(self.scheduler.snapshot(), ends_per_s, heads, self._seen)

    def _line(self, ingress: str, now: float) -> Line:
        """The connection to an ingress; a new one if there is none."""
        line = self._lines.get(ingress)
        if line is None:
            line = self._lines[ingress] = Line()
            before = self._cuts.get(ingress)
            if before is not None and not before.is_noticed:
                # The ingress closes it at once: it believes in the one before.
                line.is_broken = line.is_noticed = True
                self._later(now + HOP_S, self.notice_cut, ingress, line)
        return line

    def _set_due(self, at: float) -> None:
        self._due_at = at
        self._later(at, self._advance)

    def _advance(self, now: float) -> None:
        """End the pass or begin the next, unless another moment was set since."""
        if now != self._due_at:
            return
        if self._planned is None:
            self._begin(now)
        elif self._is_poisoned(self._planned):
            self.killed(self, now)
        else:
            self._finish(self._planned, now)
            if self.is_doomed:
                self.killed(self, now)

    def _begin(self, now: float) -> None:
        self._note(self.scheduler.expire(now), now)
        planned = self.scheduler.plan(now)
        # Who starts is told before the pass, as the engine does.
        self._note(self.scheduler.take_events(), now)
        outbox, self._outbox = self._outbox, []
        self._tell(outbox, now)
        self._sleeps = planned is None
        if planned is None:
            wake_at = self.scheduler.wake_at(now)
            self._due_at = None
            if wake_at is not None:
                self._set_due(wake_at)
            return
        self._planned = planned
        entries, world = planned.batch.entries, self._world
        token_count = sum([len(entry.tokens) for entry in entries])
        pass_s = world.pass_s + world.sequence_s * len(entries)
        pass_s += world.prompt_token_s * (token_count - len(entries))
        self._pass_s = pass_s * self._slowness
        self._set_due(now + self._pass_s)

    def _finish(self, planned: PlannedBatch, now: float) -> None:
        batch = planned.batch
        samples = tuple(
            [
                SAMPLES[value_at(sequence.sampling.seed, entry.start + len(entry.tokens))]
                if entry.wants_token
                else _NO_TOKEN
                for sequence, entry in zip(planned.sequences, batch.entries, strict=True)
            ]
        )
        outcome = Outcome.of(batch.number, samples, self._pass_s)
        self._planned = None
        self._note(self.scheduler.apply(planned, outcome, now), now)
        self._set_due(now + self._world.host_s)

    def _note(self, events: Iterable[Event], now: float) -> None:
        """What happened is told when the next pass begins."""
        orders, outbox = self.orders, self._outbox
        for event in one_by_one(events):
            order = orders[event.request_id]
            outbox.append((order, event))
            if type(event) is FinishEvent:
                self._end(order, event, now)
            elif type(event) is StartEvent:
                family = (order.request.scope, order.request.prompt[0])
                self._checks.reused(order, event, is_known=family in self._families)
                self._families.add(family)

    def _tell(self, outbox: list[tuple[Order, OneEvent]], now: float) -> None:
        """Tell each ingress what happened to its requests."""
        for order, event in outbox:
            if order.line.is_broken:
                if order.left_count == 0:
                    self._later(now, order.ingress.call_over, order)
            elif type(event) is TokenEvent:
                order.ingress.received(order, event, now)
            elif type(event) is FinishEvent:
                order.ingress.finished(order, event, now)
            elif type(event) is StartEvent:
                order.ingress.started(order, event, now)

    def _end(self, order: Order, event: FinishEvent, now: float) -> None:
        self.sequence_count -= 1
        order.left_count -= 1
        if order.left_count:
            return
        self._answered_count += event.reason in _ANSWERED
        del self.orders[event.request_id]
        if not self.orders:
            self._busy_s += now - self._busy_since

    def _is_poisoned(self, planned: PlannedBatch) -> bool:
        """Whether this pass computes what kills."""
        if not any(each in self.orders for each in self._checks.poisons):
            return False
        for sequence, entry in zip(planned.sequences, planned.batch.entries, strict=True):
            order = self.orders.get(sequence.request.id)
            at = None if order is None else order.live.asked.poison_at
            if at is not None and entry.start <= at < entry.start + len(entry.tokens):
                assert order is not None
                self._checks.killed(order)
                return True
        return False
