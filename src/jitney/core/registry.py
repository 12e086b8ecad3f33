"""All unfinished sequences, their time limits, and every move between waiting, running and ended.

`Admission` decides who may run, `Preemption` who makes room, and the scheduler what running
sequences do in a tick. Here is what they change: each move keeps the queue, the memory, the shares
and the counters right. Called by the parts of the scheduler only.

Tests: tests/simulation and tests/unit/core/test_scheduler.py.
"""

import heapq
import math
from bisect import insort
from collections.abc import Iterator

from jitney.core import limits
from jitney.core.backend import Traits
from jitney.core.batch import FaultKind
from jitney.core.counters import Counters
from jitney.core.events import Event, FinishEvent, FinishReason, StartEvent
from jitney.core.memory import Memory
from jitney.core.prefix import Match
from jitney.core.request import Priority, RequestId
from jitney.core.rules.gate import make_gate
from jitney.core.rules.pauses import Pauses
from jitney.core.rules.queue import WaitQueue
from jitney.core.rules.ranking import ranking_of, seniority
from jitney.core.rules.shares import MemoryShares, paused_max
from jitney.core.scheduler_settings import Policy, SchedulerSettings
from jitney.core.sequence import Sequence, SequenceState

_ENDINGS = {
    FinishReason.STOP: "ended_finished",
    FinishReason.LENGTH: "ended_finished",
    FinishReason.CANCELLED: "ended_cancelled",
    FinishReason.DEADLINE: "ended_failed",
    FinishReason.FAILED: "ended_failed",
}


ENDED_KEPT = 256
"""How many deadlines of ended sequences are kept before all are removed."""


class Registry:
    """The sequences of all accepted requests that have not ended."""

    def __init__(self, settings: SchedulerSettings, traits: Traits, counters: Counters) -> None:
        self._running_max = settings.max_num_seqs
        self._overtake_s = settings.overtake_s
        self._decodes_differ = traits.decodes_differ
        self._rewinds = traits.rewinds
        self._reuses = settings.enable_prefix_caching
        self._counters = counters
        self.by_class = settings.policy is Policy.PRIORITY
        self.memory = Memory(traits, settings, counters)
        self.memory_shares = MemoryShares(self.memory, settings.max_num_seqs)
        self.complaints: list[str] = []
        """Sentences about mistakes of a user's policy, to be logged and cleared."""
        ranking = ranking_of(settings.policy, counters, self.complaints)
        self.queue = WaitQueue(ranking, settings.overtake_s)
        self.gate = make_gate(settings, counters)
        count_max = paused_max(settings.max_num_queued_reqs)
        self.paused = Pauses(self.queue, self.gate, counters, count_max)
        self.deadlines = Deadlines(settings)
        self.by_request: dict[RequestId, list[Sequence]] = {}
        self.running: list[Sequence] = []
        """The most senior first."""
        self.prefilling: set[Sequence] = set()
        """Those of them that have more to compute than their last token."""
        self.opened: list[Sequence] = []
        """Those that got their slots since the last batch: the next one opens them."""
        self.background_count = 0
        """How many of them are background sequences."""
        self.events: list[Event] = []
        """To be reported by the scheduler: what happened, in order."""
        self.last_order = 0
        """The number of the last submission."""

    def add(self, sequences: list[Sequence], now: float) -> None:
        """The sequences of a newly accepted request start to wait."""
        assert sequences[0].request.id not in self.by_request, "a request is accepted once"
        self.by_request[sequences[0].request.id] = list(sequences)
        for sequence in sequences:
            self.last_order += 1
            sequence.order = self.last_order
            self.queue.add(sequence)
            self.deadlines.add(sequence, now)
        self._counters["accepted"] += len(sequences)

    @property
    def unfinished_max(self) -> int:
        """An upper bound of the unfinished sequences; one that is paused may count twice."""
        return len(self.running) + self.queue.count + len(self.paused)

    def wanted(self, sequence: Sequence, scored_count: int = 1) -> int:
        """The most positions of a sequence that the next batch may have, if so many score their
        prompts in it."""
        if self.paused and sequence in self.paused:
            return 0
        want = sequence.wanted_count
        assert want >= 0, want
        if want > 1 and self._decodes_differ:
            # Generated tokens are computed again as they were first: one by one (invariant 4).
            want = max(1, min(want, sequence.prompt_count - sequence.planned))
        if want > 1 and not self._rewinds:
            # A span ends where a copy of the state is to be kept.
            want = min(want, self.memory.until_copy(sequence) or want)
        if want > 1 and sequence.scores_prompt:
            # At least two: a single token would be taken for a decode.
            return min(want, max(limits.SCORED_SPAN_MAX // scored_count, 2))
        return want

    def wanted_by(self, sequences: list[Sequence]) -> list[int]:
        """The same for each of these, if all of them are in one batch."""
        wants = [each.wanted_count for each in sequences]
        if not self.paused and wants.count(1) == len(wants):
            return wants  # all generate, as in most ticks
        scored_count = sum([each.scores_prompt for each in sequences]) or 1
        return [self.wanted(each, scored_count) for each in sequences]

    def take_events(self) -> list[Event]:
        """Everything to report since the last call, in order."""
        events, self.events = self.events, []
        return events

    def take_opened(self) -> tuple[Sequence, ...]:
        """Those that the next batch opens, which is planned now, and that still run."""
        opened = tuple([each for each in self.opened if each.slot is not None])
        self.opened.clear()
        return opened

    def note_elders(self, now: float) -> None:
        """Running sequences that have become elders are from now on senior to all classes.

        Only where classes count: otherwise the older is senior in any case.
        """
        if not self.by_class:
            return
        for sequence in list(self.running):
            if not sequence.is_elder and now - sequence.accepted_at > self._overtake_s:
                sequence.is_elder = True
                self.running.remove(sequence)
                self._insert_running(sequence)

    def keep_states(self) -> None:
        """Keep copies of the states that stand where they are kept, before any of them goes on."""
        if self._rewinds:
            return
        for sequence in self.running:
            self.memory.keep_state(sequence, self.running)

    def start(self, sequence: Sequence, match: Match, now: float) -> None:
        """A waiting sequence gets a slot and runs. The caller has seen that there is room."""
        assert len(self.running) < self._running_max, "all slots are in use"
        self.memory.give_slot(sequence, match)
        self.opened.append(sequence)
        if (fair := self.queue.lane_of(sequence).fair) is not None:
            # Before it stops waiting, so that its tenant does not seem absent.
            fair.admit(sequence)
            # Charged now, or one tenant would take all room of this tick. Tokens that are computed
            # again count again.
            fair.charge(sequence.request.tenant, sequence.known_count - sequence.computed)
        self.queue.remove(sequence)
        sequence.move(SequenceState.RUNNING)
        history = sequence.history
        history.admitted_known = sequence.known_count
        history.reused_count = sequence.computed
        self._insert_running(sequence)
        if sequence.is_prefilling:
            self.prefilling.add(sequence)
        self.background_count += sequence.is_background
        self.gate.joined(sequence)
        self.queue.shares.count(sequence, running=1)
        if history.started_at is None:
            history.started_at = now
            # A resumed one may find tokens that it made before, which are no prompt.
            history.cached_count = min(sequence.computed, len(sequence.request.prompt))
            self._counters["admitted"] += 1
            event = StartEvent(sequence.request.id, sequence.index, now, history.cached_count)
            self.events.append(event)

    def wait_again(self, sequence: Sequence) -> None:
        """A running sequence has lost its slot. It keeps its age."""
        assert sequence.slot is None, "a waiting sequence has no slot"
        sequence.move(SequenceState.WAITING)
        # Before it stops running, so that its tenant does not seem absent.
        self.queue.add(sequence)
        if sequence in self.paused:
            self.paused.leave_queue(sequence)
        self._stop_running(sequence)

    def lose_memory(self) -> None:
        """The backend lost its memory: running sequences wait again, with nothing computed."""
        self.memory.clear()
        self.opened.clear()
        for sequence in list(self.running):
            sequence.forget_computed()
            self.wait_again(sequence)
            self._counters["resumed_after_failure"] += 1
        assert not self.running, "nothing runs without memory"

    def reprioritise(self, sequence: Sequence, priority: Priority) -> None:
        """Change the class of the sequence."""
        sequence.priority = priority
        self._counters["reprioritised"] += 1
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            self._insert_running(sequence)
        elif sequence not in self.paused:
            self.queue.lane_of(sequence).rank_again(sequence)

    def end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        message: str | None = None,
        stop_reason: int | None = None,
        fault_kind: FaultKind = FaultKind.BACKEND,
    ) -> None:
        """End a sequence that runs or waits. Reported exactly once (invariant 1)."""
        if sequence.state is SequenceState.RUNNING:
            # Others must not reuse memory that may hold the cause of a failure.
            self.memory.leave(sequence, keeps_memory=reason is not FinishReason.FAILED)
            if reason is FinishReason.FAILED:
                self.memory.forget(sequence)
            self._stop_running(sequence)
        else:
            if sequence not in self.paused:
                self.queue.remove(sequence)
            self.memory.discard(sequence)
        if sequence in self.paused:
            self.paused.forget(sequence)
        sequence.move(SequenceState.FINISHED)
        self.gate.left(sequence)
        self._counters[_ENDINGS[reason]] += 1
        siblings = self.by_request[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self.by_request[sequence.request.id]
            if not self._reuses:
                self.memory.forget(sequence)
        event = FinishEvent(
            sequence.request.id,
            sequence.index,
            now,
            reason,
            sequence.completion_count,
            sequence.history.cached_count,
            sequence.history.preempted_count,
            stop_reason,
            message,
            fault_kind,
        )
        self.events.append(event)

    def check_sample(self) -> None:
        """Check what takes bounded time (invariants 3 and 7)."""
        self.memory.check_sample()
        ended = sum([self._counters[name] for name in set(_ENDINGS.values())])
        assert self._counters["accepted"] >= ended, ended
        if not self.by_request:
            assert self._counters["accepted"] == ended, ended
            ledger = self.memory.ledger
            assert ledger.used == ledger.held_by(list(self.memory.holdings)), ledger.used
            assert self.queue.token_count == 0, "queue tokens"
            assert self.unfinished_max == 0, "what has ended neither runs nor waits"

    def check(self) -> None:
        """Recompute every total and compare (invariants 2, 3 and 7)."""
        self.memory.check(self.running)
        unfinished = [sequence for sequences in self.by_request.values() for sequence in sequences]
        running = [sequence for sequence in unfinished if sequence.state is SequenceState.RUNNING]
        waiting = [sequence for sequence in unfinished if sequence.state is SequenceState.WAITING]
        assert len(running) + len(waiting) == len(unfinished), "each waits or runs"
        assert set(running) == set(self.running), "the list of running sequences is wrong"
        assert len(running) <= self._running_max, len(running)
        assert self.prefilling == {each for each in running if each.is_prefilling}, "prefills"
        kinds = [sequence.is_background for sequence in self.running]
        assert kinds == sorted(kinds), "background sequences are the last of the running ones"
        assert self.background_count == sum(kinds), self.background_count
        queued = [sequence for sequence in waiting if sequence not in self.paused]
        assert set(self.paused) <= set(unfinished), "an ended sequence is paused"
        assert self.queue.count == len(queued), (self.queue.count, len(queued))
        assert self.queue.token_count == sum(s.known_count for s in queued), "queue tokens"
        self.queue.shares.check(queued, list(self.paused), running)
        ended = sum(self._counters[name] for name in set(_ENDINGS.values()))
        assert self._counters["accepted"] == ended + len(unfinished), (ended, len(unfinished))
        for sequence in unfinished:
            assert 0 <= sequence.computed <= sequence.planned, sequence.request.id
            assert sequence.known_count <= sequence.known_max, sequence.request.id

    def _insert_running(self, sequence: Sequence) -> None:
        insort(self.running, sequence, key=lambda s: seniority(s, by_class=self.by_class))

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.prefilling.discard(sequence)
        self.background_count -= sequence.is_background
        self.queue.shares.count(sequence, running=-1)
        if (fair := self.queue.lane_of(sequence).fair) is not None:
            fair.leave(sequence)


class Deadlines:
    """The time limits of all unfinished sequences, the next one first."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._due: list[tuple[float, int, bool, Sequence]] = []
        """When, the order of the sequence, and whether the limit is only until its first slot."""

    @property
    def next_at(self) -> float | None:
        """When the next limit ends."""
        return self._due[0][0] if self._due else None

    def add(self, sequence: Sequence, now: float) -> None:
        """The sequence was accepted.

        One that another engine accepted waits since then, and one that ran there does not wait for
        its first slot. The time until its end is what is left of it. A limit of infinity is none,
        whatever the settings say.
        """
        assert sequence.state is SequenceState.WAITING, "limits begin when it is accepted"
        request, settings = sequence.request, self._settings
        wait_s, total_s = request.queue_timeout_s, request.request_timeout_s
        wait_s = settings.queue_timeout_s if wait_s is None else wait_s
        total_s = settings.request_timeout_s if total_s is None else total_s
        if wait_s is not None and wait_s < math.inf and not request.resumed:
            self._note(sequence, sequence.accepted_at + wait_s, is_until_start=True)
        if total_s is not None and total_s < math.inf:
            self._note(sequence, now + total_s, is_until_start=False)

    def _note(self, sequence: Sequence, due_at: float, *, is_until_start: bool) -> None:
        assert not math.isnan(due_at), due_at
        heapq.heappush(self._due, (due_at, sequence.order, is_until_start, sequence))

    def passed(self, now: float, unfinished_count: int) -> Iterator[Sequence]:
        """Sequences whose time is over. The caller ends each one before it takes the next."""
        assert unfinished_count >= 0, unfinished_count
        self._forget_ended(unfinished_count)
        while self._due and self._due[0][0] <= now:
            _, _, is_until_start, sequence = heapq.heappop(self._due)
            is_met = is_until_start and sequence.has_started
            if sequence.state is not SequenceState.FINISHED and not is_met:
                yield sequence

    def _forget_ended(self, unfinished_count: int) -> None:
        """Drop limits of ended sequences: the next ones now, all when there are too many."""
        due = self._due
        while due and due[0][3].state is SequenceState.FINISHED:
            heapq.heappop(due)
        if len(due) > ENDED_KEPT + 4 * unfinished_count:
            due[:] = [each for each in due if each[3].state is not SequenceState.FINISHED]
            heapq.heapify(due)
