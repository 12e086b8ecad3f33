"""Runs the world of a seed: faults and all, then without faults until everybody is answered.

    safety     arrivals, cancels, slow readers, faults; checkers look at every turn
    liveness   no faults and nobody new: everything must end within a stated number of turns
    farewell   one last request, so that the last memory operations reach the backend

Production code: the scheduler and all of the core, and the engine's tick, collectors, mailboxes
and recovery. One thread, no sleep; the same seed gives the same run.
"""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from unittest import mock

from jitney.backends.shared import prefix_files
from jitney.core import limits
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler_settings import Policy, Strategy
from jitney.engine.answer import Ending
from jitney.engine.mailbox import Mailbox
from jitney.engine.observe import Observers
from jitney.engine.tick import Tick
from jitney.errors import Draining, EngineStopped, JitneyError
from tests.simulation.alone import Oracle
from tests.simulation.checkers.all import make_checkers
from tests.simulation.disk import CHUNK_TOKENS, DictShelf, SlowFetcher
from tests.simulation.faults import FaultyBackend, QueueingFaultyBackend, VirtualClock
from tests.simulation.marks import Marks
from tests.simulation.policies import HostilePolicy
from tests.simulation.seen import (
    Fetched,
    Rested,
    Seen,
    Steered,
    Stopped,
    Submitted,
    Ticked,
    Violation,
)
from tests.simulation.trace import Trace
from tests.simulation.watch import Watch
from tests.simulation.workload import Arrival, CancelAt, draw_workload, is_poisoned
from tests.simulation.world import FaultRates, World, draw_world

SAFETY_TURNS_MAX = 1500
IDLE_TURNS_MAX = 100
"""Turns in a row without a batch, though somebody lives and time passes."""

LIVENESS_TURNS = 100
LIVENESS_TURNS_PER_TOKEN = 4
"""Turns in which a world must come to rest: some, and so many for each token that the live
requests may have. One token per turn is the slowest that the most senior sequence moves."""

REAL_S_MAX = 600.0
SCORED_SPAN_MAX = 16
IDLE_S_MIN = 0.001
JUMP_S = 3600.0
LOOK_CHANCE = 0.1
"""That somebody looks at memory and queue after a turn."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong: which checker says what, in which turn."""

    checker: str
    sentence: str
    turn: int


@dataclass(frozen=True, slots=True)
class Report:
    """One run: how large it was, what it visited, and how it failed, if it did."""

    seed: int
    requests: int
    turns: int
    tokens: int
    virtual_s: float
    counters: Counter[str]
    marks: Counter[str]
    failure: Failure | None


@dataclass(slots=True)
class _Reader:
    arrival: Arrival
    mailbox: Mailbox
    is_done: bool = False


def run(seed: int, write: Callable[[str], None] | None = None) -> Report:
    """The run of a seed; `write` gets one line per turn. Never raises for a violation."""
    # Constraints are compiled in real time, of which a seed knows nothing. Prompts are short, so
    # few of their tokens may be scored at once.
    few = mock.patch.object(limits, "SCORED_SPAN_MAX", SCORED_SPAN_MAX)
    short = mock.patch.object(prefix_files, "CHUNK_TOKENS", CHUNK_TOKENS)
    with mock.patch.object(limits, "CONSTRAINT_AGAIN_S_MAX", REAL_S_MAX), few, short:
        world, shelf = draw_world(seed), None
        if world.disk is not None:
            # A first life fills the disk, and the second one starts warm.
            shelf = DictShelf(world.disk, Random(f"shelf {seed}"))
            first = Simulation(world, None, shelf)
            if (failure := _failure_of(first)) is not None:
                return first.report(failure)
        simulation = Simulation(world, write, shelf)
        failure = _failure_of(simulation)
    return simulation.report(failure)


def _failure_of(simulation: "Simulation") -> Failure | None:
    try:
        simulation.run()
    except Violation as violation:
        return Failure(violation.checker, violation.sentence, simulation.turns)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        kind = "assertion" if isinstance(error, AssertionError) else "exception"
        place = f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} in {frame.name}"
        return Failure(kind, f"{type(error).__name__} at {place}: {error}", simulation.turns)
    return None


class Simulation:
    """One world and what happens in it."""

    def __init__(
        self,
        world: World,
        write: Callable[[str], None] | None = None,
        shelf: DictShelf | None = None,
    ) -> None:
        self._world = world
        self._random = Random(f"turns {world.seed}")
        self._clock = VirtualClock()
        self._started_at = self._clock.now()
        self._marks = Marks()
        self._trace = Trace(write) if write is not None else None
        faults = Random(f"faults {world.seed}")
        kind = QueueingFaultyBackend if world.queues else FaultyBackend
        self._backend = kind(world.fake, world.faults, faults, self._clock, self._see, self._marks)
        if world.disk is not None and shelf is not None:
            self._backend.use_shelf(shelf, world.disk.limit)
        traits, eos_tokens = self._backend.traits, self._backend.vocabulary.eos_tokens
        self._watch = Watch(world.settings, traits, eos_tokens, self._see, hastes=world.hastes)
        self._oracle = Oracle(world.fake, world.settings.model_len_max)
        self._checkers = make_checkers(world, self._watch, traits, self._oracle, shelf)
        self._fetcher = self._make_fetcher(world)
        self._tick = Tick(self._watch, self._backend, self._clock, Observers())
        workload = draw_workload(world)
        self._arrivals = list(workload.arrivals)[::-1]
        self._cancels = list(workload.cancels)[::-1]
        self._steers = list(workload.steers)[::-1]
        self._in_flight: list[CancelAt] = []
        self._readers: list[_Reader] = []
        self._cancelled: set[RequestId] = set()
        self._accepted_count = 0
        self._idle_turns = 0
        self._is_draining = False
        self.turns = 0
        self._mark_world()

    def _make_fetcher(self, world: World) -> SlowFetcher | None:
        if world.disk is None:
            return None
        fetcher = SlowFetcher(
            self._backend.fetch,
            self._watch.stored.take,
            self._clock.now,
            self._see,
            world.disk,
            Random(f"fetches {world.seed}"),
        )
        self._watch.stored.ask = fetcher.ask
        return fetcher

    def run(self) -> None:
        """Safety, liveness, farewell."""
        self._safety()
        self._backend.rates = FaultRates()
        if self._tick.stopped is None:
            self._liveness()
        if self._tick.stopped is None and not self._world.drains:
            self._farewell()
        self._rest()

    def report(self, failure: Failure | None) -> Report:
        """What there is to say about the run."""
        if failure is not None and self._trace is not None:
            self._trace.flush()
        counters = Counter(self._watch.counters)
        return Report(
            seed=self._world.seed,
            requests=self._accepted_count,
            turns=self.turns,
            tokens=counters["computed_prompt_tokens"] + counters["computed_completion_tokens"],
            virtual_s=self._clock.now() - self._started_at,
            counters=counters,
            marks=self._marks.counts,
            failure=failure,
        )

    def _see(self, seen: Seen) -> None:
        if self._trace is not None:
            self._trace.see(seen)
        if isinstance(seen, Submitted):
            self._oracle.add(seen.request)
        self._marks.see(seen)
        for checker in self._checkers:
            checker.see(seen)

    def _safety(self) -> None:
        extra = self._random.choice((0, 10, 50))
        hopeless_at = self._random.randrange(60)
        while self.turns < SAFETY_TURNS_MAX and self._tick.stopped is None:
            if not self._arrivals:
                extra -= 1
                if extra < 0 or not self._tick.has_work:
                    return
            if self._world.gives_up and self.turns >= hopeless_at:
                self._backend.is_beyond_hope = True
            if self._random.random() < self._world.faults.clock_jump:
                self._marks.add("clock jumped")
                self._clock.advance(JUMP_S)
            self._turn()

    def _liveness(self) -> None:
        if self._world.drains:
            self._see(Steered(self._clock.now(), "drain", RequestId("")))
            self._is_draining = True
            self._tick.drain()
            self._marks.add("drained")
            self._refuse(Draining)
        self._arrivals.clear()
        bound = self._liveness_turns()
        end = self.turns + bound
        while self._tick.has_work and self._tick.stopped is None:
            if self.turns >= end:
                raise Violation("waiting", f"without faults, work is left after {bound} turns")
            self._turn()

    def _liveness_turns(self) -> int:
        live = [each.arrival.request for each in self._readers if each.mailbox.ending is None]
        tokens = [len(each.prompt) + (each.params.max_tokens or 0) for each in live]
        whole = sum(each.params.n * count for each, count in zip(live, tokens, strict=True))
        # Poison brings the backend down until its sequence is given up, and all who run begin anew.
        crashes = limits.FAILURES_MAX * sum(each.params.n for each in live if is_poisoned(each))
        anew = crashes * self._world.settings.max_num_seqs * max(tokens, default=0)
        # Whoever steers or cancels wakes the loop, though nothing may come of it.
        woken = LIVENESS_TURNS + len(self._steers) + len(self._cancels)
        return woken + LIVENESS_TURNS_PER_TOKEN * whole + anew

    def _farewell(self) -> None:
        """A last request takes the last memory operations to the backend."""
        if self._fetcher is not None:
            self._fetcher.settle()
        params = SamplingParams(temperature=0.0, max_tokens=2)
        request = Request(id=RequestId("farewell"), prompt=(1, 2, 3), params=params, seed=0)
        self._submit(Arrival(self._clock.now(), request, True, 1.0))
        while self._tick.has_work and self._tick.stopped is None:
            self._turn()
        # A backend that is lost keeps nothing, and this one is still to be started again.
        is_here = self._tick.stopped is None and self._tick.is_backend_ready
        if is_here and self._backend.tickets:
            raise Violation("ledger", f"at rest the backend keeps {set(self._backend.tickets)}")

    def _rest(self) -> None:
        was_stopped = self._tick.stopped is not None
        if was_stopped:
            self._see(Stopped(self._clock.now()))
            self._refuse(EngineStopped)
        for reader in self._readers:
            self._read(reader)
        self._see(Rested(self._clock.now(), self._watch.snapshot(), was_stopped))
        if not was_stopped:
            self._tick.check()

    def _turn(self) -> None:
        self.turns += 1
        now = self._clock.now()
        self._fetch_due()
        self._arrive()
        self._cancel_due()
        self._steer_due()
        has_run = self._turn_tick()
        if self._tick.stopped is not None:
            return
        # A command ends the loop's sleep, so nothing needs to be awaited after it.
        is_woken = bool(self._in_flight)
        for cancel in self._in_flight:
            self._cancel(cancel)
        self._in_flight.clear()
        for reader in self._readers:
            if not reader.is_done and self._random.random() < reader.arrival.read_chance:
                self._read(reader)
        if self._random.random() < LOOK_CHANCE:
            self._watch.detail(self._clock.now())
        self._see(Ticked(self.turns, now, self._clock.now(), self._watch.snapshot()))
        if has_run:
            self._idle_turns = 0
        elif not is_woken:
            self._idle()

    def _turn_tick(self) -> bool:
        """One turn; whether a batch ran. An idle backend is looked after, as the loop does."""
        has_run = self._tick.run(self._intake)
        if not has_run and self._tick.stopped is None:
            self._tick.check_backend()
        return has_run

    def _idle(self) -> None:
        """Let time pass until something is due."""
        now = self._clock.now()
        outside = [each[-1].at for each in (self._arrivals, self._cancels, self._steers) if each]
        times = [at + self._started_at for at in outside]
        fetched_at = None if self._fetcher is None else self._fetcher.due_at
        times += [at for at in (self._tick.wake_at(now), fetched_at) if at is not None]
        waits_until_full = self._world.settings.wait_s is None and not self._is_draining
        if self._tick.has_work and not waits_until_full:
            # A group may wait for those who come, and everybody for a backend that is started
            # again; what waits for neither must go on by itself.
            is_awaited = outside or fetched_at is not None or not self._tick.is_backend_ready
            self._idle_turns = 0 if is_awaited else self._idle_turns + 1
            if not times:
                raise Violation("waiting", "somebody lives, and nothing is awaited")
            if self._idle_turns > IDLE_TURNS_MAX:
                raise Violation("waiting", f"no batch in {IDLE_TURNS_MAX} turns, somebody lives")
        if times:
            self._clock.advance(max(min(times) - now, IDLE_S_MIN))

    def _intake(self) -> None:
        """What comes in while a batch is under way."""
        if self._random.random() < 0.5:
            self._arrive()
        self._fetch_due()
        for cancel in self._in_flight:
            self._marks.add("cancel between plan and apply")
            self._cancel(cancel)
        self._in_flight.clear()
        if self._steers and self._random.random() < 0.5:
            self._steer_due()

    def _fetch_due(self) -> None:
        if self._fetcher is not None:
            self._fetcher.run()

    def _steer_due(self) -> None:
        now = self._clock.now()
        while self._steers and self._steers[-1].at <= now - self._started_at:
            steer = self._steers.pop()
            self._see(Steered(now, steer.kind, steer.request_id))
            match steer.kind:
                case "pause":
                    self._tick.pause(steer.request_id)
                case "resume":
                    self._tick.resume(steer.request_id)
                case _:
                    self._tick.reprioritise(steer.request_id, steer.priority)

    def _arrive(self) -> None:
        now = self._clock.now() - self._started_at
        while self._arrivals and self._arrivals[-1].at <= now:
            self._submit(self._arrivals.pop())

    def _submit(self, arrival: Arrival) -> None:
        mailbox = Mailbox(streams=arrival.streams)
        try:
            self._tick.submit(arrival.request, mailbox)
        except EngineStopped:
            raise
        except JitneyError:
            return
        self._accepted_count += 1
        self._readers.append(_Reader(arrival, mailbox))
        if self._random.random() < 0.02:
            self._refuse_twin(arrival.request)

    def _refuse_twin(self, request: Request) -> None:
        """An id that is live already is refused, and the first one goes on."""
        try:
            self._tick.submit(request, Mailbox())
        except JitneyError:
            return
        raise Violation("limits", f"{request.id} was accepted twice")

    def _refuse(self, kind: type[JitneyError]) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=1)
        request = Request(id=RequestId("late"), prompt=(1,), params=params, seed=0)
        try:
            self._tick.submit(request, Mailbox())
        except kind:
            if kind is Draining:
                self._marks.add("refused while draining")
            return
        raise Violation("limits", f"a request was accepted where {kind.__name__} is due")

    def _cancel_due(self) -> None:
        now = self._clock.now() - self._started_at
        while self._cancels and self._cancels[-1].at <= now:
            cancel = self._cancels.pop()
            if cancel.in_flight:
                self._in_flight.append(cancel)
            else:
                self._cancel(cancel)

    def _cancel(self, cancel: CancelAt) -> None:
        if cancel.request_id in self._cancelled:
            self._marks.add("cancel twice")
        if cancel.request_id == "nobody":
            self._marks.add("cancel unknown")
        self._cancelled.add(cancel.request_id)
        self._tick.cancel(cancel.request_id)

    def _read(self, reader: _Reader) -> None:
        while not reader.is_done and (item := reader.mailbox.fetch()) is not None:
            reader.is_done = isinstance(item, Ending)
            self._see(Fetched(reader.arrival.request, item, reader.arrival.streams))

    def _mark_world(self) -> None:
        settings = self._world.settings
        self._marks.add("backend queues" if self._world.queues else "backend in process")
        self._marks.add(f"strategy {settings.strategy}")
        if isinstance(settings.policy, Policy):
            self._marks.add(f"policy {settings.policy}")
        self._marks.add(f"mix {settings.mix}")
        self._marks.add(f"block {self._world.fake.block_tokens}")
        if not settings.enable_prefix_caching:
            self._marks.add("reuse off")
        if not settings.enable_preemption:
            self._marks.add("no displacement")
        if isinstance(settings.policy, HostilePolicy):
            self._marks.add(f"hostile policy {settings.policy.kind}")
        elif settings.strategy is not Strategy.CONTINUOUS:
            self._marks.add(f"answers {settings.group_answers}")
