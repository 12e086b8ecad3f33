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
from dataclasses import dataclass, fields

from jitney.cluster.back_channel import BEAT_S, ReplicaLine
from jitney.cluster.replica_messages import (
    Accepted,
    Address,
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
from jitney.cluster.routing import HEAD_STRIDES, HEADS_MAX, Report
from jitney.core.backend import Segment
from jitney.core.params import Constraint
from jitney.core.scheduler_settings import Policy
from jitney.engine.answer import Answer, Delta
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle
from jitney.engine.stats import Statistics
from jitney.errors import EngineStopped, JitneyError
from jitney.loading.compose import Assembly
from jitney.records import Record, RequestStarted

_log = logging.getLogger("jitney.cluster")

LOOK_S_MAX = 1.0
"""A report does not wait longer for an engine that is in a long pass."""

_SUMS = tuple(
    each.name
    for each in fields(Statistics)
    if each.type in ("int", "float", int, float) and each.name not in ("started_at", "progress_at")
)


@dataclass(slots=True, eq=False)
class _Order:
    """A request that runs here for an ingress."""

    order: Run
    handle: Handle[Answer]
    line: ReplicaLine
    ended: asyncio.Event
    is_told: bool = False
    """Whether the ingress knows that it was accepted."""

    def accepted(self) -> list[Told]:
        """The message that it was accepted, once."""
        told, self.is_told = self.is_told, True
        return [] if told else [Accepted(self.order.wanted.id, self.order.attempt)]


class ReplicaEngine:
    """An engine with its model. Made and used on the event loop of its process."""

    def __init__(self, assembly: Assembly, name: str, clock: Clock | None = None) -> None:
        self._assembly = assembly
        self._engine: Engine = assembly.engine
        self.name = name
        self._clock = clock or SystemClock()
        self._loop = asyncio.get_running_loop()
        self._live: dict[str, _Order] = {}
        self._lines: dict[str, asyncio.Task[ReplicaLine]] = {}
        self._seen: dict[str, int] = {}
        self._ready: deque[_Order | RequestStarted] = deque()
        """Filled by the engine's thread, emptied on the loop."""
        self._is_flush_due = False
        self._heads: frozenset[int] = frozenset()
        self._watching: set[asyncio.Task[None]] = set()
        self._engine.observe(self._take_record)
        self._beat = asyncio.create_task(self._beat_always())

    async def run(self, frame: bytes) -> None:
        """Run the request of an order to its end. Raises OSError if the ingress is not reached."""
        order = decode_run(frame)
        ingress, request_id = order.address.ingress, order.wanted.id
        line = await self._line(order.address)
        self._seen[ingress] = max(self._seen.get(ingress, 0), order.number)
        try:
            request = order.wanted.request()
            handle = self._engine.send(request, arrived_at=self._clock.now() - order.waited_s)
        except JitneyError as error:
            line.send([Ended.of(request_id, order.attempt, None, error)])
            return
        live = _Order(order, handle, line, asyncio.Event())
        self._live[request_id] = live
        try:
            await self._follow(live)
        except JitneyError as error:
            line.send([Ended.of(request_id, order.attempt, None, error)])
        finally:
            handle.cancel()
            if self._live.get(request_id) is live:
                del self._live[request_id]

    async def _follow(self, live: _Order) -> None:
        """Wait for the end of a request that was sent to the engine. Raises its refusal."""
        await live.handle.wait_accepted_async()
        live.line.send(live.accepted())
        live.handle.listen(lambda: self._note(live))
        await live.ended.wait()

    async def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, as the backend makes them."""
        return await asyncio.to_thread(self._engine.backend.encode, texts)

    async def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use. Raises a RequestError."""
        await asyncio.to_thread(self._engine.backend.prepare, constraint)

    def steer(self, request_id: str, action: str, priority: int) -> None:
        """Pause, resume or reprioritise a request that runs here."""
        live = self._live.get(request_id)
        if live is None:
            return
        if action == "pause":
            live.handle.pause()
        elif action == "resume":
            live.handle.resume()
        else:
            live.handle.reprioritise(priority)

    def describe(self) -> bytes:
        """What is loaded here."""
        backend, settings = self._engine.backend, self._engine.settings
        values = {name: getattr(settings, name) for name in type(settings).__slots__}
        if not isinstance(settings.policy, Policy):
            # A policy of the user's own stays where it runs.
            values["policy"] = Policy.FIFO
        return encode_one(
            Description(self._assembly.model_name, backend.traits, backend.vocabulary, values)
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

    def _note(self, item: "_Order | RequestStarted") -> None:
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
            else:
                self._fetch(item, told.setdefault(item.line, []))
        for line, messages in told.items():
            line.send(messages)

    def _fetch(self, live: _Order, told: list[Told]) -> None:
        """Take everything that is new of a request."""
        request_id, attempt = live.order.wanted.id, live.order.attempt
        while isinstance(item := live.handle.fetch(), Delta):
            told.append(Made.of(request_id, attempt, item))
        if item is None:
            live.handle.listen(lambda: self._note(live))
            return
        told.append(Ended.of(request_id, attempt, item.answer, item.error))
        live.ended.set()

    async def _line(self, address: Address) -> ReplicaLine:
        """The connection to an ingress; the first order of an ingress makes it."""
        connecting = self._lines.get(address.ingress)
        if connecting is None:
            connecting = asyncio.create_task(self._connect(address))
            self._lines[address.ingress] = connecting
        return await asyncio.shield(connecting)

    async def _connect(self, address: Address) -> ReplicaLine:
        try:
            line = await ReplicaLine.connect(address, self.name)
        except BaseException:
            del self._lines[address.ingress]
            raise
        self._watch(address.ingress, line)
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
            totals = self._engine.totals()
            sums = {name: float(getattr(totals, name)) for name in _SUMS}
            for connecting in list(self._lines.values()):
                if connecting.done() and connecting.exception() is None:
                    connecting.result().send([State(self._engine.snapshot(), sums)])
