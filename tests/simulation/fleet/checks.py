"""What must hold in a simulated fleet: `FleetChecks`, told by ingresses and replicas what they do.

    ending      every request ends exactly once
    stream      its caller gets the text that was known before: no token twice, none left out
    usage       what is counted is what was told
    resume      a request goes on from exactly what its caller has
    alone       at no time do two replicas run one request for its ingress
    scope       a prefix is reused only within its scope, and heads of scopes differ
    bounds      no replica takes more than its slots and its queue hold
    quarantine  a request that kills its replicas ends soon, and nobody else ends for it

Each raises a `Violation` with its name. The checker `recount`, in `simulator.py`, compares sums.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from jitney.core.events import FinishEvent, FinishReason, StartEvent
from jitney.core.request import RequestId
from jitney.engine.answer import Completion
from jitney_cluster.cluster_request import LOSSES_MAX, Verdict
from tests.simulation.fleet.model import answer_of, text_of
from tests.simulation.fleet.orders import FleetRequest, Order
from tests.simulation.fleet.traffic import OWN
from tests.simulation.fleet.world import FleetWorld
from tests.simulation.seen import OneEvent, TokenEvent, Violation

KILLS_MAX = LOSSES_MAX + 1
"""Replicas that one request may kill, as far as its ingress can know. One more than its losses: a
token that was made and not told is made again, and shows that the request is harmless until there.
Over a broken connection no ingress learns that the request ran, so such a kill does not count."""

MARKS = (
    "call over, end not told",
    "cancelled",
    "deadline",
    "end not told",
    "ended after its last token",
    "failed",
    "finished",
    "moved after tokens",
    "moved before its first token",
    "moved with one completion done",
    "no replica at all",
    "poison",
    "prefix reused",
    "refused",
    "sent on by a full replica",
    "suspect",
    "a suspect waits for another",
    "token not told",
    "token of an attempt that was given up",
)
"""Paths that some seed must have visited."""


class End(Enum):
    """How a request ended for its caller."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    REFUSED = "refused"
    FAILED = "failed"


class Running(Protocol):
    """What is looked at of a replica."""

    orders: dict[RequestId, Order]


@dataclass(slots=True)
class Figures:
    """Sums over all requests."""

    ended_count: int = 0
    ends: Counter[End] = field(default_factory=Counter)
    moved_count: int = 0
    """Requests that were moved; then how often."""
    move_count: int = 0
    innocent_count: int = 0
    """Requests that failed and killed nobody."""
    token_count: int = 0
    prompt_count: int = 0
    """Prompt tokens of requests that started; then those that were cached."""
    cached_count: int = 0
    first_token_s: list[float] = field(default_factory=list)
    digest: int = 0
    """Of all ends and their moments: equal in two runs of a seed."""


class FleetChecks:
    """Follows every request from its beginning to its end."""

    def __init__(self, world: FleetWorld, replicas: Mapping[str, Running]) -> None:
        self._world = world
        self._replicas = replicas
        self.figures = Figures()
        self.marks: Counter[str] = Counter()
        self.poisons: set[RequestId] = set()
        """Those that live."""
        self._ends = bytearray(world.request_count)
        self.kill_count = 0
        """Replicas that were killed by requests."""
        self._kills: Counter[int] = Counter()
        self._scopes: dict[int, str] = {}
        """Whose the first key of each system prompt is."""

    def began(self, live: FleetRequest) -> None:
        """A caller has asked."""
        request = live.asked.request
        if live.asked.poison_at is not None:
            self.poisons.add(request.id)
        if live.state.head.keys and self._world.are_prompts_shared and request.prompt[0] < OWN:
            owner = self._scopes.setdefault(live.state.head.keys[0], request.scope)
            if owner != request.scope:
                raise Violation("scope", f"{owner} and {request.scope} have a key in common")

    def sent(self, order: Order) -> None:
        """An ingress sends a request to a replica."""
        live, request = order.live, order.request
        asked = live.asked.request
        resumed: tuple[tuple[int, ...] | None, ...] = ()
        if live.finished or any(live.received):
            resumed = tuple(
                None if index in live.finished else tuple(tokens)
                for index, tokens in enumerate(live.received)
            )
        if request.resumed != resumed:
            raise Violation(
                "resume", f"{request.id} goes on from {request.resumed}, its caller has {resumed}"
            )
        if request is not asked:
            same = ("id", "prompt", "params", "seed", "scope")
            if any(getattr(request, name) != getattr(asked, name) for name in same):
                raise Violation("resume", f"{request.id} goes on as another request: {request}")

    def accepted(self, order: Order, sequence_count: int) -> None:
        """A replica has taken an order; so many sequences live there now."""
        world = self._world
        count_max = world.slot_count + max(world.queue_max, order.left_count)
        # Who was let in once is taken, full or not.
        if sequence_count > count_max and order.request.waited_s is None:
            raise Violation("bounds", f"{order.replica} has {sequence_count} sequences")
        if order.live.state.attempt > 1:
            self._check_alone(order.live)

    def reused(self, order: Order, event: StartEvent, *, is_known: bool) -> None:
        """A sequence has started; whether this beginning and scope were there before."""
        self.figures.prompt_count += len(order.request.prompt)
        self.figures.cached_count += min(event.cached_count, len(order.request.prompt))
        self.marks["prefix reused"] += event.cached_count > 0
        if event.cached_count and not is_known:
            raise Violation(
                "scope",
                f"{order.request.id} of {order.request.scope} found {event.cached_count} tokens "
                f"on {order.replica}, where its scope never had them",
            )

    def untold(self, events: Iterable[OneEvent]) -> None:
        """A replica died before it told these."""
        for event in events:
            self.marks["token not told"] += type(event) is TokenEvent
            self.marks["end not told"] += type(event) is FinishEvent

    def killed(self, order: Order) -> None:
        """A request has killed its replica."""
        number = order.live.asked.number
        self.kill_count += 1
        self._kills[number] += not order.line.is_broken
        if self._kills[number] > KILLS_MAX:
            raise Violation("quarantine", f"{number} killed {self._kills[number]} replicas")

    def moved(self, live: FleetRequest, verdict: Verdict) -> None:
        """A request lost its replica."""
        self.figures.move_count += 1
        self.figures.moved_count += live.state.move_count == 1
        marks = self.marks
        marks["moved after tokens" if any(live.received) else "moved before its first token"] += 1
        marks["moved with one completion done"] += bool(live.finished)
        marks["suspect"] += verdict is Verdict.ALONE
        params = live.asked.request.params
        if not live.finished and all(len(each) == params.max_tokens for each in live.received):
            marks["ended after its last token"] += 1

    def ended(self, live: FleetRequest, end: End, now: float) -> None:
        """A caller was told that its request is over."""
        asked, figures = live.asked, self.figures
        number, request = asked.number, asked.request
        if self._ends[number]:
            raise Violation("ending", f"request {number} ended twice, now as {end.value}")
        self._ends[number] = 1
        if end is End.REFUSED and live.state.is_accepted:
            raise Violation("ending", f"request {number} was let in, and sent away")
        self.marks[end.value] += 1
        answer = live.state.answer(now)
        for completion in answer.completions:
            self._check_completion(live, completion, is_whole=end is End.FINISHED)
        if live.state.attempt > 1:
            self._check_alone(live)
        self._check_guilt(live, end)
        self.poisons.discard(request.id)
        figures.ended_count += 1
        figures.ends[end] += 1
        figures.token_count += sum(map(len, live.received))
        first_token_s = answer.timing.first_token_s
        if first_token_s is not None:
            figures.first_token_s.append(first_token_s)
        figures.digest = hash((figures.digest, number, len(end.value), now))

    def rest(self, live_count: int) -> None:
        """Everything is over."""
        if live_count or not all(self._ends):
            raise Violation("ending", f"{self._ends.count(0)} requests never ended")

    def _check_completion(
        self, live: FleetRequest, completion: Completion, *, is_whole: bool
    ) -> None:
        request, index = live.asked.request, completion.index
        name = f"completion {index} of {request.id}"
        due, reason = answer_of(request, index)
        tokens = tuple(live.received[index])
        is_ended = is_whole or completion.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        if tokens != (due if is_ended else due[: len(tokens)]):
            raise Violation("stream", f"{name} got {tokens} where {due} was due")
        if completion.tokens != tokens or completion.text != text_of(tokens):
            raise Violation("stream", f"{name} is answered with {completion.tokens}, not {tokens}")
        if is_ended and completion.finish_reason is not reason:
            raise Violation("stream", f"{name} ended by {completion.finish_reason}, not {reason}")
        # An end token is counted, and is no text.
        count = len(tokens) + (is_ended and reason is FinishReason.STOP)
        usage = completion.usage
        is_counted = usage.completion_count == count if is_ended else True
        if not is_counted or usage.prompt_count != len(request.prompt):
            raise Violation("usage", f"{name} has {len(tokens)} tokens, and its usage is {usage}")

    def _check_alone(self, live: FleetRequest) -> None:
        """At most one replica runs it, of those whose connection to the ingress stands."""
        request_id = live.asked.request.id
        found = [replica.orders.get(request_id) for replica in self._replicas.values()]
        running = [each for each in found if each is not None and not each.line.is_broken]
        if len(running) > 1:
            names = [order.replica for order in running]
            raise Violation("alone", f"{request_id} runs on {names}")

    def _check_guilt(self, live: FleetRequest, end: End) -> None:
        number, is_poison = live.asked.number, live.asked.poison_at is not None
        self.marks["poison"] += is_poison and end is End.FAILED
        if is_poison and end is End.FINISHED:
            raise Violation("quarantine", f"{number} kills whoever runs it, and was answered")
        if end is not End.FAILED:
            return
        if live.lost_count < LOSSES_MAX:
            raise Violation("quarantine", f"{number} failed after {live.lost_count} losses")
        self.figures.innocent_count += not is_poison
