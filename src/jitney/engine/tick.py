"""One tick of the engine: expire, plan, execute, apply, collect, deliver.

It runs on one thread and waits only for the backend. In production the engine thread calls it; in
tests, a simulator with a virtual clock. Only this module changes the scheduler (but for
`stop_gathering` and `stored`) and the collectors. Batches in flight are kept in
`jitney.engine.in_flight`.

After a failure or a wrong answer of the backend, the backend is reset, and every running sequence
is computed again from its tokens (invariant 10).
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jitney.core import limits
from jitney.core.backend import Backend
from jitney.core.batch import Outcome
from jitney.core.events import (
    Event,
    FinishEvent,
    FinishReason,
    LifeEvent,
    PreemptEvent,
    PreemptReason,
    StartEvent,
    TokensEvent,
)
from jitney.core.request import Priority, Request, RequestId
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.scheduler import Scheduler
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Ending
from jitney.engine.clock import Clock
from jitney.engine.collector import Collector
from jitney.engine.in_flight import InFlight, LostBatch, Recovery, level_of, sentence_of
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import (
    Observers,
    members_of,
    record_accepted,
    record_done,
    record_preempted,
    record_started,
    record_tick,
)
from jitney.engine.stats import Statistics
from jitney.errors import EngineError, EngineStopped, InvalidRequest, JitneyError
from jitney.records import BackendLost, KvPressure, Record, RequestFailed, RequestRefused

_log = logging.getLogger("jitney.engine")


class Tick:
    """Runs the ticks of one engine."""

    def __init__(
        self, scheduler: Scheduler, backend: Backend, clock: Clock, observers: Observers
    ) -> None:
        self._scheduler = scheduler
        self._backend = backend
        self._vocabulary = backend.vocabulary
        self._clock = clock
        self._observers = observers
        self._recovery = Recovery(backend)
        self._in_flight = InFlight(backend, clock)
        self._collectors: dict[RequestId, Collector] = {}
        self._ended: dict[RequestId, Collector] = {}
        """Requests that have ended, and whose ends are not recorded and given out yet. Until then
        their ids are not free."""
        # Preempted in this tick; and preempted for memory since the last `KvPressure`.
        self._preempted_count = 0
        self._memory_preempted_count = 0
        self._evicted_count = 0
        self.statistics = Statistics(clock.now(), scheduler.snapshot())
        self.drains = False
        self.stopped: EngineError | None = None
        """Why there will be no more ticks; None before that."""

    @property
    def is_backend_ready(self) -> bool:
        """Whether the backend takes batches; false while it is lost and restarted."""
        return self._recovery.is_ready

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished, or a batch is in flight."""
        return bool(self._collectors or self._ended or self._in_flight)

    def submit(
        self,
        request: Request,
        mailbox: Mailbox,
        sent_at: float | None = None,
        arrived_at: float | None = None,
    ) -> None:
        """Take a request, or raise its refusal; its wait counts from `sent_at`, its latency from
        `arrived_at`."""
        now = self._clock.now()
        if request.id in self._ended:
            self._deliver(now)  # the end of one is recorded before another has its id
        try:
            self._raise_stopped()
            if request.id in self._ended:
                raise InvalidRequest(
                    f"A request with the id {request.id!r} is live already: its answer waits for "
                    "those of its group.",
                    "id",
                )
            self._scheduler.submit(request, now)
        except JitneyError as error:
            self._record(RequestRefused(at=now, request_id=request.id, error=error))
            raise
        assert request.id not in self._collectors, f"{request.id} has a collector already"
        sent_at = now if sent_at is None else min(sent_at, now)
        collector = Collector(request, self._vocabulary, mailbox, sent_at, arrived_at)
        self._collectors[request.id] = collector
        self._record(record_accepted(request, collector.arrived_at, collector.sent_at, now))
        mailbox.accept()
        for index in collector.stopped_indices:
            self._collect(self._scheduler.finish(request.id, index, FinishReason.STOP, now), now)

    def cancel(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Cancel a request. An unknown one is ignored.

        Its caller gets the ending at the end of this tick, or at the start of the next: many may be
        cancelled at once, and a measurement is needed before. With a mailbox, only the request of
        that mailbox is cancelled: another request may have the id now.
        """
        if self.stopped is None and not self._is_of_another(request_id, mailbox):
            now = self._clock.now()
            self._collect(self._scheduler.cancel(request_id, now), now)

    def pause(self, request_id: RequestId, mailbox: Mailbox | None = None) -> PauseOutcome:
        """Pause a request until it is resumed."""
        if self._is_of_another(request_id, mailbox):
            return PauseOutcome.ENDED
        return self._scheduler.pause(request_id, self._clock.now())

    def resume(self, request_id: RequestId, mailbox: Mailbox | None = None) -> None:
        """Let a paused request go on. Unknown and ended ones are ignored."""
        if not self._is_of_another(request_id, mailbox):
            self._scheduler.resume(request_id, self._clock.now())

    def reprioritise(
        self, request_id: RequestId, priority: Priority, mailbox: Mailbox | None = None
    ) -> None:
        """Change the class of a request. Unknown and ended ones are ignored."""
        if not self._is_of_another(request_id, mailbox):
            self._scheduler.reprioritise(request_id, priority)

    def cancel_all(self) -> None:
        """Cancel every unfinished request."""
        now = self._clock.now()
        for request_id in list(self._collectors):
            self._collect(self._scheduler.cancel(request_id, now), now)
        self._deliver(now)

    def drain(self) -> None:
        """Take no new requests."""
        self.drains = True
        self._scheduler.drain(self._clock.now())

    def end_waits(self) -> None:
        """From now on groups start without waiting to be full, and all pauses end."""
        self._scheduler.end_waits(self._clock.now())

    def run(self, intake: Callable[[], None] = lambda: None) -> bool:
        """One tick; whether a batch ran. `intake` takes new commands. It is called before a batch
        is planned early and before an outcome is applied, so that cancels take effect before tokens
        are given out."""
        self._raise_stopped()
        started_at = self._clock.now()
        expired = self._scheduler.expire(started_at)
        if expired:
            self._collect(expired, started_at)
        self._deliver(started_at)
        if not self._in_flight and not self._send(started_at):
            self._measure()
            # Planning may have ended a group whose answers were held back.
            self._deliver(started_at)
            return False
        outcome = self._receive(intake)
        intake()
        now = self._clock.now()
        if isinstance(outcome, LostBatch):
            self._lose(outcome, now)
            return True
        times = (self._in_flight.begun_at, now)
        planned = self._in_flight.pop_oldest(now)
        # Before it is applied: a sequence that has ended by then gets no token from it.
        members = members_of(planned, outcome)
        self._collect(self._scheduler.apply(planned, outcome, now), now)
        snapshot, preempted_count = self._measure(), self._preempted_count
        self._preempted_count = 0
        self._record(record_tick(planned, outcome, members, snapshot, preempted_count, times))
        self._deliver(now)
        return True

    def check_backend(self) -> None:
        """Check that an idle backend still lives; restart it if not."""
        if not self._recovery.is_ready:
            return
        try:
            self._backend.check()
        except Exception as error:
            self._lose(LostBatch(error), self._clock.now())

    def look(self, characters_max: int) -> Detail:
        """The detail, with the last characters of every unfinished text."""
        tails = {
            request_id: collector.tails(characters_max)
            for request_id, collector in self._collectors.items()
        }
        return replace(self._scheduler.detail(self._clock.now()), tails=tails)

    def wake_at(self, now: float) -> float | None:
        """When a tick may have something to do though nothing new arrives; None: never."""
        retry_at = self._recovery.retry_at
        if retry_at is None:
            return self._scheduler.wake_at(now)
        # While the backend is lost, only deadlines count.
        deadline_at = self._scheduler.deadline_at
        return retry_at if deadline_at is None else min(retry_at, deadline_at)

    def check(self) -> None:
        """Recount everything. Raises AssertionError if something is wrong."""
        self._scheduler.check()
        self._check_live()

    def check_sample(self) -> None:
        """A part of `check` in bounded time, for an engine that becomes idle: a request that comes
        meanwhile waits for it."""
        self._scheduler.check_sample()
        self._check_live()

    def _check_live(self) -> None:
        count = len(self._collectors) + len(self._ended)
        assert self.statistics.unfinished_count == count, "requests were lost or doubled"

    def stop(self, error: EngineError) -> None:
        """End every unfinished request with this error, once. There will be no more ticks."""
        if self.stopped is not None:
            return
        self.stopped = error
        now = self._clock.now()
        unfinished = [*self._ended.values(), *self._collectors.values()]
        self._ended.clear()
        self._collectors.clear()
        for collector in unfinished:
            if collector.mailbox.ending is not None:
                continue  # it was given, and what its reader did with it is why the engine stops
            for act in (
                partial(self._record_failed, collector, error, now),
                partial(collector.mailbox.end, Ending(None, error)),
            ):
                try:
                    act()
                except Exception:
                    # What stops the engine may be what counts, or a reader. All get their end.
                    _log.exception("The end of a request could not be recorded or taken")

    def abandon(self, error: EngineError) -> None:
        """Any thread: end every unfinished request, because the engine thread is stuck."""
        for collector in [*self._ended.values(), *self._collectors.values()]:
            collector.mailbox.abandon(error)

    def _is_of_another(self, request_id: RequestId, mailbox: Mailbox | None) -> bool:
        collector = self._collectors.get(request_id)
        return collector is not None and mailbox not in (None, collector.mailbox)

    def _send(self, now: float) -> bool:
        """Plan a batch and send it; whether there was one."""
        if not self._recover(now):
            return False
        planned = self._scheduler.plan(now)
        # Before the pass, which may be long, so that the snapshot is up to date during it. It may
        # also end this process: who looks from outside must know what ran. Without a batch there
        # may be news too: a request that is paused has lost its slot.
        self._collect(self._scheduler.take_events(), now)
        if planned is None:
            return False
        self._measure()
        self._in_flight.send(planned, now)
        return True

    def _receive(self, intake: Callable[[], None]) -> Outcome | LostBatch:
        """The outcome of the oldest batch in flight. Before it comes, the next may be sent."""
        outcome, spare_s = None, self._in_flight.spare_s(self._clock.now())
        if spare_s is not None:
            outcome = self._in_flight.receive(spare_s)
            if outcome is None:
                intake()
                if self._scheduler.is_steady:
                    self._send(self._clock.now())
        if outcome is None:
            outcome = self._in_flight.receive()
        assert outcome is not None, "without a limit there is a result"
        return outcome

    def _lose(self, lost: LostBatch, now: float) -> None:
        text = "The backend was lost, and running requests, if any, will be resumed: %s"
        message = sentence_of(lost.error)
        _log.log(level_of(lost.error, logging.WARNING), text, message)
        self._in_flight.clear()
        self._recovery.lose(now)
        self._record(BackendLost(at=now, error=message, restarts_failed=0))
        events = self._scheduler.fail(message, now, lost.sequences)
        self._collect(events, now)
        self._measure()
        self._deliver(now)
        self._recover(now)

    def _recover(self, now: float) -> bool:
        """Restart the backend if it is lost; whether a batch may be sent."""
        lost_at = self._recovery.lost_at
        if lost_at is None:
            return True
        error = self._recovery.attempt(now)
        if error is None:
            if self._recovery.is_ready:
                _log.warning("The backend is back after %.1f s", self._clock.now() - lost_at)
            return self._recovery.is_ready
        failed_count = self._recovery.failed_count
        text = "The backend could not be started (%d): %s"
        _log.log(level_of(error, logging.ERROR), text, failed_count, sentence_of(error))
        self._record(BackendLost(at=now, error=sentence_of(error), restarts_failed=failed_count))
        if self._recovery.has_given_up:
            self.stop(
                EngineStopped(
                    f"The backend could not be started {failed_count} times in a row, over "
                    f"{limits.GIVE_UP_S:.0f} s, so the engine stopped; the last reason was: "
                    f"{sentence_of(error)}"
                )
            )
        return False

    def _collect(self, events: list[Event], now: float) -> None:
        """Pass events to their collectors, and verdicts back to the scheduler."""
        verdicts: list[tuple[RequestId, int, FinishReason]] = []
        for event in events:
            if isinstance(event, TokensEvent):
                logprobs, at = event.logprobs, event.at
                for place, (request_id, index) in enumerate(event.names):
                    push_token = self._collectors[request_id].push_token
                    verdict = push_token(index, event.tokens[place], at, logprobs.get(place))
                    if verdict is not None:
                        verdicts.append((request_id, index, verdict))
                continue
            collector = self._collectors.get(event.request_id)
            assert collector is not None, f"an event of an unknown request: {event}"
            self._note(event, collector)
            collector.push(event)
            if isinstance(event, FinishEvent) and collector.is_done:
                del self._collectors[event.request_id]
                self._ended[event.request_id] = collector
        for request_id, index, verdict in verdicts:
            collector = self._collectors.get(request_id)
            if collector is None:
                continue
            if verdict is FinishReason.CANCELLED:
                _log.info("Request %s is not being read, and is cancelled", request_id)
                self._collect(self._scheduler.cancel(request_id, now), now)
            elif not collector.is_finished(index):
                self._collect(self._scheduler.finish(request_id, index, verdict, now), now)

    def _note(self, event: LifeEvent, collector: Collector) -> None:
        """Record a start or a preemption, before the collector has it."""
        if isinstance(event, StartEvent) and not collector.is_started:
            self._record(record_started(collector.request, collector.sent_at, event))
        elif isinstance(event, PreemptEvent):
            self._preempted_count += event.reason is not PreemptReason.PAUSED
            self._memory_preempted_count += event.reason.is_of_memory
            self._record(record_preempted(event))

    def _deliver(self, now: float) -> None:
        """Give ended requests their endings. They are counted first, so a caller finds them
        counted.

        The answers of a group that still runs are held back, to be given out together.
        """
        if not self._ended:
            return
        self._measure()
        holds_answers = self._scheduler.holds_answers
        for request_id, collector in list(self._ended.items()):
            if holds_answers and collector.is_answered and not collector.request.is_background:
                # Checked again at every tick: the ending is made only when it is given out.
                continue
            ending = collector.ending(now)
            if ending.error is not None:
                self._record_failed(collector, ending.error, now)
            else:
                assert ending.answer is not None, request_id
                self._record(record_done(ending.answer, now))
            collector.mailbox.end(ending)
            # Last: if something breaks before, `stop` still ends it.
            del self._ended[request_id]

    def _measure(self) -> Snapshot:
        """Take a snapshot of the scheduler; record if memory ran short since the last one."""
        snapshot = self._scheduler.snapshot()
        self.statistics.note(snapshot, self._clock.now())
        complaints = self._scheduler.complaints
        for complaint in complaints:
            _log.warning("%s", complaint)
        complaints.clear()
        evicted_count = snapshot.counters["evicted"]
        if evicted_count > self._evicted_count or self._memory_preempted_count:
            self._record(
                KvPressure(
                    at=self._clock.now(),
                    evicted_count=evicted_count - self._evicted_count,
                    preempted_count=self._memory_preempted_count,
                    kv_used=snapshot.kv_used,
                )
            )
        self._evicted_count = evicted_count
        self._memory_preempted_count = 0
        return snapshot

    def _record_failed(self, collector: Collector, error: JitneyError, now: float) -> None:
        self._record(
            RequestFailed(
                at=now,
                request_id=collector.request.id,
                error=error,
                generated_tokens=collector.token_count,
                duration_ms=(now - collector.arrived_at) * 1e3,
            )
        )

    def _record(self, record: Record) -> None:
        self.statistics.take(record)
        self._observers.tell(record)

    def _raise_stopped(self) -> None:
        if self.stopped is not None:
            raise EngineStopped(str(self.stopped))
