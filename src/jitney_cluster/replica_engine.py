"""One engine of the fleet: takes orders, and sends each ingress what comes of them.

It knows no Ray. It runs on one event loop; the engine's thread only says that there is something to
fetch. The news of all requests of an ingress since the last look go out in one frame: that is once
per tick, however many requests there are.

    run(order) -> accepted -> started -> deltas ... -> ended; then `run` returns

`run` lasts as long as the request. So whoever calls it sees the death of this process, can cancel,
and knows how many requests run here. When an ingress is gone, its requests are cancelled.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

from jitney.core.backend import Segment
from jitney.core.events import FinishReason
from jitney.core.params import Constraint
from jitney.core.request import Request
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler_settings import Policy
from jitney.core.snapshot import Detail
from jitney.engine.answer import Answer, Delta
from jitney.engine.clock import SystemClock
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle
from jitney.errors import Draining, EngineStopped, JitneyError
from jitney.loading.compose import Assembly, model_key
from jitney.records import Member, Record, RequestStarted, TickRecord
from jitney_cluster.back_channel import BEAT_S, IngressConnection
from jitney_cluster.overview import sums_of
from jitney_cluster.replica_count import ReplicaLoad
from jitney_cluster.replica_messages import (
    Address,
    Description,
    Order,
    OrderAccepted,
    OrderCatchingUp,
    OrderDelta,
    OrderEnded,
    OrderStarted,
    ReplicaMessage,
    ReplicaState,
    decode_request,
)
from jitney_cluster.routing import ENDS_PER_S_MIN, HEAD_STRIDES, ReplicaReport

_log = logging.getLogger("jitney.cluster")

LOOK_S_MAX = 1.0
"""A report does not wait longer for an engine that is in a long pass."""

TAIL_CHARACTERS_MAX = 1024
SLOTS_MAX = 512
STRETCHES_MAX = 2048
"""The detail of one replica, as it is sent: at most half a megabyte."""


@dataclass(slots=True, eq=False)
class _RunningOrder:
    """A request that runs here for an ingress."""

    order: Order
    request: Request
    handle: Handle[Answer]
    connection: IngressConnection
    ended: asyncio.Event
    is_accepted: bool = False
    """Whether the ingress knows that it was accepted."""
    is_catching_up: bool = False
    """Written by the engine's thread alone."""

    def accept(self) -> list[ReplicaMessage]:
        """The message that it was accepted, once."""
        if self.is_accepted:
            return []
        self.is_accepted = True
        return [OrderAccepted(self.order.request_id, self.order.attempt)]

    def catch_up(self, members: Sequence[Member]) -> OrderCatchingUp | None:
        """The message after a pass with these parts of it, if anything has changed."""
        request = self.request
        is_catching_up = True
        for each in members:
            known = len(request.prompt) + len(request.resumed[each.index] or ())
            left = known - each.start - each.length
            # The next pass may be as long as this one, and must not be the one that makes a token.
            is_catching_up = is_catching_up and not each.samples and left > each.length
        if is_catching_up == self.is_catching_up:
            return None
        self.is_catching_up = is_catching_up
        return OrderCatchingUp(request.id, self.order.attempt, is_catching_up)


_News = _RunningOrder | RequestStarted | OrderCatchingUp


class ReplicaEngine:
    """An engine with its model. Made and used on the event loop of its process."""

    def __init__(self, assembly: Assembly, name: str) -> None:
        self._assembly = assembly
        self._engine: Engine = assembly.engine
        self.name = name
        self.model_key = model_key(assembly.settings)
        self._clock = SystemClock()
        self._loop = asyncio.get_running_loop()
        self._live: dict[str, _RunningOrder] = {}
        self._connections: dict[str, asyncio.Task[IngressConnection]] = {}
        self._seen: dict[str, int] = {}
        self._resumed: set[str] = set()
        """Requests that another engine has begun."""
        self._ready: deque[_News] = deque()
        """Filled by the engine's thread, emptied on the loop."""
        self._is_flush_due = False
        self._heads: frozenset[int] = frozenset()
        self._looking: set[IngressConnection] = set()
        """Connections whose ingresses asked for the detail."""
        self._engine.observe(self._take_record)
        self._beat = asyncio.create_task(self._beat_always())

    async def run(self, order: Order) -> None:
        """Run the request of an order to its end. Raises OSError if the ingress is not reached."""
        ingress = order.address.ingress
        connection = await self._connection(order.address)
        self._seen[ingress] = max(self._seen.get(ingress, 0), order.number)
        try:
            await self._follow(await self._submit(order, connection))
        except JitneyError as error:
            connection.send([OrderEnded.of(order.request_id, order.attempt, None, error)])

    async def _submit(self, order: Order, connection: IngressConnection) -> _RunningOrder:
        """Send the request to the engine. Raises its refusal."""
        self.check_model(order.model_key)
        request = decode_request(order.request)
        if request.params.constraint is not None:
            # It may have been prepared elsewhere, and all would wait while it is compiled.
            await self.prepare(request.params.constraint)
        if request.id in self._live:
            # The ingress gave up an earlier attempt here, and its cancel is still on its way.
            self._live[request.id].handle.cancel()
        handle = self._engine.send(request, arrived_at=self._clock.now() - order.waited_s)
        live = _RunningOrder(order, request, handle, connection, asyncio.Event())
        self._live[request.id] = live
        if request.resumed:
            self._resumed.add(request.id)
        return live

    async def _follow(self, live: _RunningOrder) -> None:
        """Wait for the end of a request that was sent to the engine. Raises its refusal."""
        try:
            await live.handle.wait_accepted_async()
            live.connection.send(live.accept())
            live.handle.listen(lambda: self._note(live))
            await live.ended.wait()
        finally:
            live.handle.cancel()
            if self._live.get(live.request.id) is live:
                del self._live[live.request.id]
                self._resumed.discard(live.request.id)

    async def connect(self, address: Address) -> None:
        """Connect to an ingress. Raises OSError if it is not reached."""
        await self._connection(address)

    async def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, as the backend makes them."""
        return await asyncio.to_thread(self._engine.backend.encode, texts)

    async def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use. Raises a RequestError."""
        await asyncio.to_thread(self._engine.backend.prepare, constraint)

    async def steer(self, request_id: str, action: str, priority: int) -> PauseOutcome | None:
        """Pause, resume or reprioritise a request that runs here; the outcome of a pause.

        `end_waits` resumes it, and starts it with others that wait for a group.
        """
        live = self._live.get(request_id)
        if live is None:
            return PauseOutcome.ENDED
        if action == "pause":
            return await asyncio.wrap_future(live.handle.pause())
        if action in ("resume", "end_waits"):
            live.handle.resume()
            if action == "end_waits":
                self._engine.stop_gathering()
        else:
            live.handle.reprioritise(priority)
        return None

    async def describe(self) -> Description:
        """What is loaded here."""
        backend, settings = self._engine.backend, self._engine.settings
        if not isinstance(settings.policy, Policy):
            # A policy of the user's own stays where it runs. It may look at priorities.
            settings = replace(settings, policy=Policy.PRIORITY)
        name = self._assembly.model_name
        return Description(name, self.model_key, backend.traits, backend.vocabulary, settings)

    async def report(self) -> ReplicaReport:
        """The state for the router."""
        try:
            heads = asyncio.wrap_future(self._engine.heads(HEAD_STRIDES))
            self._heads = await asyncio.wait_for(heads, LOOK_S_MAX)
        except TimeoutError:
            pass  # the last ones are the best that is known
        ends_per_s = self._engine.stats().requests_per_second
        return ReplicaReport.of(self._engine.snapshot(), ends_per_s, self._heads, self._seen)

    def load(self) -> ReplicaLoad:
        """The load, for the number of replicas. Background requests use what is there."""
        snapshot, stats = self._engine.snapshot(), self._engine.stats()
        running = snapshot.running_count - snapshot.background_running
        # Those that a share holds back would wait beside free slots too.
        held_back = snapshot.background_waiting + snapshot.deferred_count
        waiting = max(0, snapshot.waiting_count - held_back)
        return ReplicaLoad(
            slot_count=float(snapshot.slot_count),
            taken_count=float(running + waiting),
            wait_s=waiting / max(stats.requests_per_second, ENDS_PER_S_MIN),
        )

    def check_model(self, key: str) -> None:
        """Raise Draining if this is for another model: a rolling update is under way."""
        if key != self.model_key:
            raise Draining("This replica has another model.")

    def check(self) -> None:
        """Raise EngineStopped if the engine has given up: this replica must be replaced."""
        if self._engine.failure is not None:
            raise EngineStopped(str(self._engine.failure))

    async def close(self) -> None:
        """End the engine and all connections."""
        self._beat.cancel()
        await asyncio.to_thread(self._assembly.close, 0.0)
        for connection in self._connected():
            connection.close()
        # Some may still be made; an ingress that does not answer must not outlive this.
        connecting = [each for each in self._connections.values() if not each.done()]
        for each in connecting:
            each.cancel()
        await asyncio.gather(*connecting, return_exceptions=True)

    def _take_record(self, record: Record) -> None:
        """Engine thread."""
        if isinstance(record, RequestStarted):
            self._note(record)
        elif isinstance(record, TickRecord) and self._resumed:
            parts: dict[str, list[Member]] = {}
            for member in record.members:
                if member.request_id in self._resumed:
                    parts.setdefault(member.request_id, []).append(member)
            for request_id, members in parts.items():
                live = self._live.get(request_id)
                news = None if live is None else live.catch_up(members)
                if news is not None:
                    self._note(news)

    def _note(self, item: _News) -> None:
        """There is something to send. Any thread."""
        self._ready.append(item)
        if not self._is_flush_due:
            self._is_flush_due = True
            # A loop that has closed has no ingress to tell any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        outbox: dict[IngressConnection, list[ReplicaMessage]] = {}
        for _ in range(len(self._ready)):
            item = self._ready.popleft()
            live = item if isinstance(item, _RunningOrder) else self._live.get(item.request_id)
            if live is not None:
                outbox.setdefault(live.connection, []).extend(self._messages(live, item))
        for connection, messages in outbox.items():
            connection.send(messages)

    def _messages(self, live: _RunningOrder, item: _News) -> list[ReplicaMessage]:
        if isinstance(item, RequestStarted):
            count = item.prefix_cache_tokens
            return [*live.accept(), OrderStarted(live.request.id, live.order.attempt, count)]
        return [item] if isinstance(item, OrderCatchingUp) else self._fetch(live)

    def _fetch(self, live: _RunningOrder) -> list[ReplicaMessage]:
        """Everything that is new of a request."""
        request_id, attempt = live.request.id, live.order.attempt
        messages: list[ReplicaMessage] = []
        while isinstance(item := live.handle.fetch(), Delta):
            if item.finish_reason is not FinishReason.CANCELLED:
                messages.append(OrderDelta(request_id, attempt, item))
        if item is None:
            live.handle.listen(lambda: self._note(live))
            return messages
        answer, error = item.answer, item.error
        if answer is not None and answer.was_cancelled:
            # Whoever asks for a cancel does not listen any more. So this engine ends.
            answer, error = None, EngineStopped("The replica ends.")
        messages.append(OrderEnded.of(request_id, attempt, answer, error))
        live.ended.set()
        return messages

    def _connected(self) -> list[IngressConnection]:
        connecting = self._connections.values()
        return [each.result() for each in connecting if each.done() and not each.exception()]

    async def _connection(self, address: Address) -> IngressConnection:
        """The connection to an ingress; its first order makes it, or its wish to connect."""
        connecting = self._connections.get(address.ingress)
        if connecting is None:
            connecting = asyncio.create_task(self._connect(address))
            self._connections[address.ingress] = connecting
        return await asyncio.shield(connecting)

    async def _connect(self, address: Address) -> IngressConnection:
        try:
            connection = await IngressConnection.connect(address, self.name, self._look)
        except BaseException:
            del self._connections[address.ingress]
            raise
        connection.call_when_gone(lambda: self._forget(address.ingress, connection))
        connection.send([self._state()])
        return connection

    def _forget(self, ingress: str, connection: IngressConnection) -> None:
        """When the ingress is gone, its requests are too."""
        self._connections.pop(ingress, None)
        self._seen.pop(ingress, None)
        connection.close()
        lost = [each for each in self._live.values() if each.connection is connection]
        if lost:
            _log.warning("Ingress %s is gone: %d requests are cancelled", ingress, len(lost))
        for live in lost:
            live.handle.cancel()

    async def _beat_always(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            state = self._state()
            for connection in self._connected():
                connection.send([state])

    def _look(self, connection: IngressConnection, characters_max: int) -> None:
        """An ingress asks for the detail.

        The engine is asked once at a time, however many ask. A stuck one does not answer.
        """
        is_asked = bool(self._looking)
        self._looking.add(connection)
        if not is_asked:
            looking = self._engine.look(min(characters_max, TAIL_CHARACTERS_MAX))
            looking.add_done_callback(
                lambda looked: self._loop.call_soon_threadsafe(self._send_detail, looked)
            )

    def _send_detail(self, looked: Future[Detail]) -> None:
        connections, self._looking = self._looking, set()
        state = self._state(bounded(looked.result()))
        for connection in connections:
            connection.send([state])

    def _state(self, detail: Detail | None = None) -> ReplicaState:
        engine = self._engine
        sums = sums_of(engine.totals())
        return ReplicaState(engine.snapshot(), sums, engine.is_backend_ready, detail)


def bounded(detail: Detail) -> Detail:
    """As much of the detail as is sent: the first slots, and the ends of their texts."""
    slots = detail.slots[:SLOTS_MAX]
    names = {each.request_id for each in slots}
    return replace(
        detail,
        slots=slots,
        stretches=detail.stretches[:STRETCHES_MAX],
        tails={name: texts for name, texts in detail.tails.items() if name in names},
    )
