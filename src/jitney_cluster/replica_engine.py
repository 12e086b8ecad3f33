"""One engine of the fleet: takes orders, and tells each ingress what comes of them.

It knows no Ray. It runs on one event loop; the engine's thread only says that there is something to
fetch. What all requests of an ingress made since the last look goes out in one frame: that is once
per tick, however many requests there are.

    run(order) -> accepted -> started -> made ... -> ended; then `run` returns

`run` lasts as long as the request. So whoever calls it sees the death of this process, can cancel,
and knows how many requests run here. When an ingress is gone, its requests are cancelled.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from jitney.core.backend import Segment
from jitney.core.events import FinishReason
from jitney.core.params import Constraint
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler_settings import Policy
from jitney.engine.answer import Answer, Delta
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle
from jitney.errors import Draining, EngineStopped, JitneyError
from jitney.loading.compose import Assembly, model_key
from jitney.records import Member, Record, RequestStarted, TickRecord
from jitney_cluster.back_channel import BEAT_S, ReplicaLine
from jitney_cluster.levels import sums_of
from jitney_cluster.replica_count import ReplicaLoad
from jitney_cluster.replica_messages import (
    Accepted,
    Address,
    CatchingUp,
    Description,
    Ended,
    Made,
    Run,
    Started,
    State,
    Told,
    decode_run,
    encode_one,
)
from jitney_cluster.routing import ENDS_PER_S_MIN, HEAD_STRIDES, HEADS_MAX, Report
from jitney_cluster.showing import Showing

_log = logging.getLogger("jitney.cluster")

LOOK_S_MAX = 1.0
"""A report does not wait longer for an engine that is in a long pass."""


@dataclass(slots=True, eq=False)
class _Order:
    """A request that runs here for an ingress."""

    order: Run
    handle: Handle[Answer]
    line: ReplicaLine
    ended: asyncio.Event
    is_told: bool = False
    """Whether the ingress knows that it was accepted."""
    is_catching_up: bool = False
    """Written by the engine's thread alone."""

    def accepted(self) -> list[Told]:
        """The message that it was accepted, once."""
        told, self.is_told = self.is_told, True
        return [] if told else [Accepted(self.order.wanted.id, self.order.attempt)]

    def catch_up(self, members: Sequence[Member]) -> CatchingUp | None:
        """What is to be told after a pass with these parts of it, if anything has changed."""
        wanted = self.order.wanted
        is_so = True
        for each in members:
            known = len(wanted.prompt) + len(wanted.resumed[each.index] or ())
            left = known - each.start - each.length
            # The next pass may be as long as this one, and must not be the one that makes a token.
            is_so = is_so and not each.samples and left > each.length
        if is_so == self.is_catching_up:
            return None
        self.is_catching_up = is_so
        return CatchingUp(wanted.id, self.order.attempt, is_so)


_News = _Order | RequestStarted | CatchingUp


class ReplicaEngine:
    """An engine with its model. Made and used on the event loop of its process."""

    def __init__(self, assembly: Assembly, name: str, clock: Clock | None = None) -> None:
        self._assembly = assembly
        self._engine: Engine = assembly.engine
        self.name = name
        self.model_key = model_key(assembly.settings)
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._live: dict[str, _Order] = {}
        self._lines: dict[str, asyncio.Task[ReplicaLine]] = {}
        self._seen: dict[str, int] = {}
        self._resumed: set[str] = set()
        """Requests that another engine has begun."""
        self._ready: deque[_News] = deque()
        """Filled by the engine's thread, emptied on the loop."""
        self._is_flush_due = False
        self._heads: frozenset[int] = frozenset()
        self._watching: set[asyncio.Task[None]] = set()
        self._showing = Showing(self._engine)
        self._engine.observe(self._take_record)
        self._beat = asyncio.create_task(self._beat_always())

    async def run(self, frame: bytes) -> None:
        """Run the request of an order to its end. Raises OSError if the ingress is not reached."""
        order = decode_run(frame)
        ingress, request_id = order.address.ingress, order.wanted.id
        line = await self._line(order.address)
        self._seen[ingress] = max(self._seen.get(ingress, 0), order.number)
        try:
            self.check_model(order.model_key)
            request = order.wanted.request()
            if request.params.constraint is not None:
                # It may have been prepared elsewhere, and all would wait while it is compiled.
                await self.prepare(request.params.constraint)
            if request_id in self._live:
                # The ingress gave up an earlier attempt here, and its cancel is still on its way.
                self._live[request_id].handle.cancel()
            handle = self._engine.send(request, arrived_at=self._clock.now() - order.waited_s)
        except JitneyError as error:
            line.send([Ended.of(request_id, order.attempt, None, error)])
            return
        live = _Order(order, handle, line, asyncio.Event())
        self._live[request_id] = live
        if request.resumed:
            self._resumed.add(request_id)
        try:
            await self._follow(live)
        except JitneyError as error:
            line.send([Ended.of(request_id, order.attempt, None, error)])
        finally:
            handle.cancel()
            if self._live.get(request_id) is live:
                del self._live[request_id]
                self._resumed.discard(request_id)

    async def _follow(self, live: _Order) -> None:
        """Wait for the end of a request that was sent to the engine. Raises its refusal."""
        await live.handle.wait_accepted_async()
        live.line.send(live.accepted())
        live.handle.listen(lambda: self._note(live))
        await live.ended.wait()

    async def meet(self, address: Address) -> None:
        """Connect to an ingress. Raises OSError if it is not reached."""
        await self._line(address)

    async def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, as the backend makes them."""
        return await asyncio.to_thread(self._engine.backend.encode, texts)

    async def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use. Raises a RequestError."""
        await asyncio.to_thread(self._engine.backend.prepare, constraint)

    async def steer(self, request_id: str, action: str, priority: int) -> PauseOutcome | None:
        """Pause, resume or reprioritise a request that runs here; the outcome of a pause."""
        live = self._live.get(request_id)
        if live is None:
            return PauseOutcome.ENDED
        if action == "pause":
            return await asyncio.wrap_future(live.handle.pause())
        if action == "resume":
            live.handle.resume()
        else:
            live.handle.reprioritise(priority)
        return None

    def describe(self) -> bytes:
        """What is loaded here."""
        backend, settings = self._engine.backend, self._engine.settings
        values = {name: getattr(settings, name) for name in type(settings).__slots__}
        if not isinstance(settings.policy, Policy):
            # A policy of the user's own stays where it runs.
            values["policy"] = Policy.FIFO
        return encode_one(
            Description(
                self._assembly.model_name,
                self.model_key,
                backend.traits,
                backend.vocabulary,
                values,
            )
        )

    async def report(self) -> Report:
        """The state for the router."""
        try:
            asked = asyncio.wrap_future(self._engine.heads(HEAD_STRIDES))
            self._heads = await asyncio.wait_for(asked, LOOK_S_MAX)
        except TimeoutError:
            pass  # the last ones are the best that is known
        snapshot, stats = self._engine.snapshot(), self._engine.stats()
        fit = snapshot.fit
        return Report(
            slot_count=snapshot.slot_count,
            running_count=snapshot.running_count,
            waiting_count=snapshot.waiting_count,
            prefill_tokens=snapshot.waiting_tokens + snapshot.prefill_left,
            kv_free=snapshot.kv_tokens - snapshot.kv_used + snapshot.kv_cached,
            tick_s=0.0 if fit is None else fit.seconds(snapshot.running_count),
            prefill_token_s=snapshot.prefill_token_s,
            ends_per_s=stats.requests_per_second,
            heads=frozenset(sorted(self._heads)[:HEADS_MAX]),
            seen=dict(self._seen),
        )

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
        for connecting in self._lines.values():
            if connecting.done() and connecting.exception() is None:
                connecting.result().close()

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
        """There is something to tell. Any thread."""
        self._ready.append(item)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        told: dict[ReplicaLine, list[Told]] = {}
        for _ in range(len(self._ready)):
            item = self._ready.popleft()
            if isinstance(item, RequestStarted):
                live = self._live.get(item.request_id)
                if live is not None:
                    started = Started(item.request_id, live.order.attempt, item.prefix_cache_tokens)
                    told.setdefault(live.line, []).extend([*live.accepted(), started])
            elif isinstance(item, CatchingUp):
                live = self._live.get(item.id)
                if live is not None:
                    told.setdefault(live.line, []).append(item)
            else:
                self._fetch(item, told.setdefault(item.line, []))
        for line, messages in told.items():
            line.send(messages)

    def _fetch(self, live: _Order, told: list[Told]) -> None:
        """Take everything that is new of a request."""
        request_id, attempt = live.order.wanted.id, live.order.attempt
        while isinstance(item := live.handle.fetch(), Delta):
            if item.finish_reason is not FinishReason.CANCELLED:
                told.append(Made.of(request_id, attempt, item))
        if item is None:
            live.handle.listen(lambda: self._note(live))
            return
        if item.answer is not None and item.answer.was_cancelled:
            # Whoever asks for a cancel does not listen any more. So this engine ends.
            told.append(Ended.of(request_id, attempt, None, EngineStopped("The replica ends.")))
        else:
            told.append(Ended.of(request_id, attempt, item.answer, item.error))
        live.ended.set()

    async def _line(self, address: Address) -> ReplicaLine:
        """The connection to an ingress; its first order makes it, or its wish to meet."""
        connecting = self._lines.get(address.ingress)
        if connecting is None:
            connecting = asyncio.create_task(self._connect(address))
            self._lines[address.ingress] = connecting
        return await asyncio.shield(connecting)

    async def _connect(self, address: Address) -> ReplicaLine:
        try:
            line = await ReplicaLine.connect(address, self.name, self._showing.ask)
        except BaseException:
            del self._lines[address.ingress]
            raise
        self._watch(address.ingress, line)
        line.send([self._state()])
        return line

    def _watch(self, ingress: str, line: ReplicaLine) -> None:
        """When the ingress is gone, its requests are too."""

        async def watch() -> None:
            await line.wait_gone()
            self._lines.pop(ingress, None)
            self._seen.pop(ingress, None)
            line.close()
            lost = [each for each in self._live.values() if each.line is line]
            if lost:
                _log.warning("Ingress %s is gone: %d requests are cancelled", ingress, len(lost))
            for live in lost:
                live.handle.cancel()

        watching = asyncio.create_task(watch())
        # Tasks that nobody holds may be collected before they end.
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)

    async def _beat_always(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            state = self._state()
            for connecting in list(self._lines.values()):
                if connecting.done() and connecting.exception() is None:
                    connecting.result().send([state])

    def _state(self) -> State:
        engine = self._engine
        return State(engine.snapshot(), sums_of(engine.totals()), engine.is_backend_ready)
