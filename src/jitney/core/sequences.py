"""All live sequences: which wait, which run, and every move between the two.

Admission, displacement, preemption and ending are here. The scheduler decides what running
sequences do in a tick. Called by the scheduler only.

Tests: tests/simulation and tests/unit/core/test_scheduler.py.
"""

from bisect import insort
from collections.abc import Iterable, Set

from jitney.core import limits
from jitney.core.backend import Traits
from jitney.core.batch import FaultKind
from jitney.core.counters import Counters
from jitney.core.events import (
    Event,
    FinishEvent,
    FinishReason,
    PreemptEvent,
    PreemptReason,
    StartEvent,
)
from jitney.core.memory import Memory
from jitney.core.prefix import Match
from jitney.core.request import Priority, RequestId
from jitney.core.rules.background import Background, background_of
from jitney.core.rules.gate import Newcomers, make_gate
from jitney.core.rules.occupancy import Occupancy
from jitney.core.rules.pauses import Pauses
from jitney.core.rules.queue import WaitQueue
from jitney.core.rules.ranking import ranking_of
from jitney.core.rules.shares import paused_max
from jitney.core.rules.victim import choose_for_class, choose_for_memory, seniority
from jitney.core.scheduler_settings import Policy, SchedulerSettings
from jitney.core.sequence import Sequence, SequenceState

LOOKAHEAD = 64
"""Waiting sequences to look at before one is admitted. One that waits for a prefix lets others
pass."""

_ENDINGS = {
    FinishReason.STOP: "ended_finished",
    FinishReason.LENGTH: "ended_finished",
    FinishReason.CANCELLED: "ended_cancelled",
    FinishReason.DEADLINE: "ended_failed",
    FinishReason.FAILED: "ended_failed",
}


class LiveSequences:
    """The sequences of all accepted requests that have not ended."""

    def __init__(self, settings: SchedulerSettings, traits: Traits, counters: Counters) -> None:
        self._settings = settings
        self._counters = counters
        self.by_class = settings.policy is Policy.PRIORITY
        self._displaces = self.by_class and settings.enable_preemption
        self.memory = Memory(traits, settings, counters)
        self.occupancy = Occupancy(self.memory, settings.max_num_seqs)
        self.complaints: list[str] = []
        """Sentences about mistakes of a user's policy, to be logged and cleared."""
        ranking = ranking_of(settings.policy, counters, self.complaints)
        self.queue = WaitQueue(ranking, settings.overtake_s)
        self.gate = make_gate(settings, counters)
        count_max = paused_max(settings.max_num_queued_reqs)
        self.paused = Pauses(self.queue, self.gate, counters, count_max)
        self.by_request: dict[RequestId, list[Sequence]] = {}
        self.running: list[Sequence] = []
        self.deferred_count = 0
        """Sequences skipped at the last admission: they do not wait for room."""
        self._memory_full: set[str] = set()
        """Tenants whose share of the memory is used up, as found in this admission."""
        self.events: list[Event] = []
        """To be reported by the scheduler: what happened, in order."""
        self.background = Background(
            settings, counters, self.running, self.queue, self.gate, self.paused, self._memory_full
        )
        self._order = 0
        self._gathered_order = 0

    def add(self, sequences: list[Sequence]) -> None:
        """The sequences of a newly accepted request start to wait."""
        self.by_request[sequences[0].request.id] = list(sequences)
        for sequence in sequences:
            self._order += 1
            sequence.order = self._order
            self.queue.add(sequence)
        self._counters.add("accepted", len(sequences))

    def take_events(self) -> list[Event]:
        """Everything to report since the last call, in order."""
        events, self.events = self.events, []
        return events

    def admit(self, now: float, *, starts_now: bool) -> None:
        """Let waiting sequences run, as far as strategy, policy, limits and memory allow."""
        newcomers = self.newcomers(held_back := self.held_back)
        oldest = newcomers.oldest
        is_gathered = oldest is not None and oldest.order <= self._gathered_order
        self.gate.open(now, newcomers, starts_now=starts_now or is_gathered)
        self._memory_full.clear()
        copied_max = self._counters["copied_tokens"] + limits.COPIED_TOKENS_MAX
        while self.queue.count and self._admit_one(now, held_back):
            if self._counters["copied_tokens"] >= copied_max:
                break
            held_back = self.held_back
        # Sequences that a share holds back cannot join this group later.
        held_back = (self.held_back or self.queue.shares.full) | self._memory_full
        if self.queue.live.count == self.queue.shares.waiting_count(held_back):
            self.gate.close()

    def stop_gathering(self) -> None:
        """Sequences that wait now need not wait for others to join them."""
        self._gathered_order = self._order

    def newcomers(self, held_back: Set[str] | None) -> Newcomers:
        """The newcomers that could be admitted now, and how many sequences more may run."""
        without, lane = held_back or frozenset(), self.queue.live
        count, oldest = lane.newcomer_count(without), lane.oldest_newcomer(without)
        running_count = sum([not sequence.is_background for sequence in self.running])
        return Newcomers(count, oldest, self._settings.max_num_seqs - running_count)

    @property
    def joinable_count(self) -> int:
        """How many waiting sequences the gate lets in."""
        if self.gate.is_open:
            return self.queue.count
        return self.queue.count - self.queue.live.newcomer_count()

    def preempt(
        self,
        sequence: Sequence,
        reason: PreemptReason,
        now: float,
        *,
        by: Sequence,
        keeps_memory: bool,
    ) -> None:
        """Let a running sequence wait again, in favour of `by`. It keeps its age."""
        assert not sequence.is_in_flight, "its batch must return first"
        self.memory.leave(sequence, keeps_memory=keeps_memory)
        self._wait_again(sequence)
        sequence.history.preempted_count += reason is not PreemptReason.PAUSED
        self.memory.trim_cache(self.running)
        if reason.is_of_memory:
            self._counters.add(f"preempted_{reason}")
        elif reason is PreemptReason.DISPLACED:
            self._counters.add("displaced")
        self.events.append(
            PreemptEvent(sequence.request.id, sequence.index, now, reason, by.request.id)
        )

    def stop_paused(self, now: float) -> None:
        """Preempt running sequences that were paused, if their batch has returned."""
        if not self.paused:
            return
        for sequence in [each for each in self.running if each in self.paused]:
            if not sequence.is_in_flight:
                self.preempt(sequence, PreemptReason.PAUSED, now, by=sequence, keeps_memory=True)

    def reprioritise(self, sequence: Sequence, priority: Priority) -> None:
        """Change the class of the sequence."""
        sequence.priority = priority
        self._counters.add("reprioritised")
        if sequence.state is SequenceState.RUNNING:
            self.running.remove(sequence)
            self._insert_running(sequence)
        elif sequence not in self.paused:
            self.queue.rank_again(sequence)

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
            self._stop_running(sequence)
            self.memory.trim_cache(self.running)
        else:
            if sequence not in self.paused:
                self.queue.remove(sequence)
            self.memory.discard(sequence)
        self.paused.forget(sequence)
        sequence.move(SequenceState.FINISHED)
        self.gate.left(sequence)
        if (fair := self.queue.lane_of(sequence).fair) is not None:
            fair.forget_absent()
        self._counters.add(_ENDINGS[reason])
        siblings = self.by_request[sequence.request.id]
        siblings.remove(sequence)
        if not siblings:
            del self.by_request[sequence.request.id]
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

    def lose_memory(self) -> None:
        """The backend lost its memory: running sequences wait again, with nothing computed."""
        self.memory.clear()
        for sequence in list(self.running):
            sequence.forget_computed()
            self._wait_again(sequence)
            self._counters.add("resumed_after_failure")

    def check(self) -> None:
        """Recompute every total and compare (invariants 2, 3 and 7)."""
        self.memory.check(self.running)
        live = [sequence for sequences in self.by_request.values() for sequence in sequences]
        running = [sequence for sequence in live if sequence.state is SequenceState.RUNNING]
        waiting = [sequence for sequence in live if sequence.state is SequenceState.WAITING]
        assert len(running) + len(waiting) == len(live), "a live sequence is waiting or running"
        assert set(running) == set(self.running), "the list of running sequences is wrong"
        assert len(running) <= self._settings.max_num_seqs, len(running)
        kinds = [sequence.is_background for sequence in self.running]
        assert kinds == sorted(kinds), "background sequences are the last of the running ones"
        queued = [sequence for sequence in waiting if sequence not in self.paused]
        assert set(self.paused) <= set(live), "an ended sequence is paused"
        assert self.queue.count == len(queued), (self.queue.count, len(queued))
        assert self.queue.token_count == sum(s.known_count for s in queued), "queue tokens"
        self.queue.shares.check(queued, list(self.paused), running)
        ended = sum(self._counters[name] for name in set(_ENDINGS.values()))
        assert self._counters["accepted"] == ended + len(live), (ended, len(live))
        for sequence in live:
            assert 0 <= sequence.computed <= sequence.planned, sequence.request.id
            assert sequence.known_count <= sequence.known_max, sequence.request.id

    def _admit_one(self, now: float, held_back: Set[str] | None) -> bool:
        """Admit one sequence, or make room for one; false if there is nothing more to do."""
        self.deferred_count = 0
        is_full = len(self.running) >= self._settings.max_num_seqs
        # Background sequences are the last of the running ones.
        if is_full and not self._displaces and not self.running[-1].is_background:
            return False
        if held_back is None:
            return False
        without = held_back | self._memory_full
        if self.queue.shares.waiting_count(without):
            self._counters.add("share_waits")
        candidates, others_count = self._candidates(now, without)
        looked_at = 0
        for sequence in candidates:
            tenant = sequence.request.limited_tenant
            if tenant in self._memory_full:
                continue
            self.deferred_count = others_count + looked_at
            if looked_at >= LOOKAHEAD:
                return False
            looked_at += 1
            if self._waits_for_suspect(sequence, now):
                continue
            match = self.memory.find(sequence)
            if match.is_awaited:
                self._counters.add("prefix_waits")
                continue
            if tenant is not None and not self.occupancy.has_room(sequence, match, self.running):
                # The tenant's other sequences wait too. Those of other tenants pass.
                self._memory_full.add(tenant)
                continue
            # Nothing passes the sequence whose turn it is, or a large one would wait for ever.
            return self._admit(sequence, match, now)
        self.deferred_count = self.queue.count
        return False

    @property
    def held_back(self) -> Set[str] | None:
        """Tenants of which nothing is admitted now; None: nothing is admitted at all.

        These are tenants that run their full share. When running sequences fill a tick, it is
        better to choose the next one later. Then tenants that already prefill are held back too;
        other tenants still get their part of the tick. Background sequences do not fill it.
        """
        full, chunk = self.queue.shares.full, self._settings.prefill_chunk
        if not self.queue.count:
            return full  # nobody waits: what the running ones want need not be counted
        live = [sequence for sequence in self.running if not sequence.is_background]
        wanted = sum([min(sequence.wanted_count, chunk) for sequence in live])
        if wanted < self._settings.max_num_batched_tokens:
            return full
        prefilling = {s.request.limited_tenant for s in live if s.wanted_count > 1}
        named = {tenant for tenant in prefilling if tenant is not None}
        return full | named if named == prefilling else None

    def choose_victim(self, sequence: Sequence) -> Sequence | None:
        """The sequence to preempt when there is no memory for this one; None if there is none.

        First a background one, then one of a tenant above its share, otherwise a junior of this
        sequence. If its own tenant is above its share, only juniors of that tenant.
        """
        juniors = self.running[self.running.index(sequence) + 1 :]
        behind = choose_for_memory(background_of(juniors), by_class=False)
        if behind is not None or sequence.is_background:
            return behind
        over_share = self.occupancy.over_share(self.running)
        tenant, by_class = sequence.request.limited_tenant, self.by_class
        if tenant in over_share:
            own = [each for each in juniors if each.request.limited_tenant == tenant]
            return choose_for_memory(own, by_class=by_class)
        victim = choose_for_memory(_all_but_first(over_share), by_class=by_class)
        return victim or choose_for_memory(juniors, by_class=by_class)

    def _candidates(self, now: float, without: Set[str]) -> tuple[Iterable[Sequence], int]:
        """The sequences that may be admitted, the next first; and how many others wait.

        The others wait for a group, or for their tenant's share.
        """
        waiting = self.background.in_order(now, without)
        if self.gate.is_open:
            return waiting, self.queue.shares.waiting_count(without)
        # A sequence that ran before may be behind many newcomers.
        joinable_count = self.joinable_count
        found = filter(self.gate.may_join, waiting) if joinable_count else ()
        return found, self.queue.count - joinable_count

    def has_memory(self, sequence: Sequence, match: Match) -> bool:
        """Whether there is room for its known tokens, beside the running sequences."""
        memory = self.memory
        room = memory.blocks_obtainable(self.running, match)
        room -= memory.blocks_promised(self.running) + memory.blocks_wanted(sequence, match)
        reserve = int(self._settings.watermark * memory.ledger.capacity) if self.running else 0
        return room >= reserve

    def _admit(self, sequence: Sequence, match: Match, now: float) -> bool:
        if len(self.running) >= self._settings.max_num_seqs:
            return self._displace(sequence, now, keeps_memory=True)
        if not self.has_memory(sequence, match):
            self._counters.add("kv_full")
            return self._displace(sequence, now, keeps_memory=False)
        if not self.memory.give_slot(sequence, match):
            return False
        self.queue.remove(sequence)
        self._start(sequence, now)
        return True

    def _start(self, sequence: Sequence, now: float) -> None:
        sequence.move(SequenceState.RUNNING)
        history = sequence.history
        history.admitted_known = sequence.known_count
        self._insert_running(sequence)
        self.gate.joined(sequence)
        self.queue.shares.count(sequence, running=1)
        if (fair := self.queue.lane_of(sequence).fair) is not None:
            fair.admit(sequence)
            # Charged now, or one tenant would take all room of this tick.
            fair.charge(sequence.request.tenant, sequence.known_count - sequence.computed)
        if history.started_at is None:
            history.started_at = now
            # A resumed one may find tokens that it made before, which are no prompt.
            history.cached_count = min(sequence.computed, len(sequence.request.prompt))
            self._counters.add("admitted")
            event = StartEvent(sequence.request.id, sequence.index, now, history.cached_count)
            self.events.append(event)

    def _insert_running(self, sequence: Sequence) -> None:
        insort(self.running, sequence, key=lambda s: seniority(s, by_class=self.by_class))

    def _preempt_over_share(self, sequence: Sequence, now: float) -> bool:
        """Preempt a sequence of a tenant above its share; false if there is none."""
        if sequence.request.limited_tenant is None:
            return False
        victims = _all_but_first(self.occupancy.over_share(self.running))
        victim = choose_for_memory(
            [each for each in victims if each.has_progressed], by_class=self.by_class
        )
        if victim is None:
            return False
        self.preempt_for_memory(victim, now, by=sequence)
        return True

    def preempt_for_memory(self, victim: Sequence, now: float, *, by: Sequence) -> None:
        """Preempt a sequence and free its memory for `by`. It is saved if possible."""
        saved = self.memory.save(victim)
        reason = PreemptReason.SAVED if saved else PreemptReason.RECOMPUTED
        self.preempt(victim, reason, now, by=by, keeps_memory=False)

    def _displace(self, sequence: Sequence, now: float, *, keeps_memory: bool) -> bool:
        """Preempt a running sequence for this one, a background one first; false if there is none.

        Its memory stays if only a slot is wanted.
        """
        if sequence.is_background:
            return False
        victim = choose_for_memory(background_of(self.running), by_class=False)
        if victim is None and not keeps_memory and self._preempt_over_share(sequence, now):
            return True
        if victim is None and self._displaces:
            victim = choose_for_class(self.running, sequence, now, self._settings.overtake_s)
        if victim is None:
            return False
        if not keeps_memory:
            self.memory.save(victim)
        displaced = PreemptReason.DISPLACED
        self.preempt(victim, displaced, now, by=sequence, keeps_memory=keeps_memory)
        return True

    def _waits_for_suspect(self, sequence: Sequence, now: float) -> bool:
        """Whether it is a suspect and another suspect runs: they run one at a time."""
        if not sequence.is_suspect:
            return False
        for other in [each for each in self.running if each.is_suspect]:
            if sequence.is_background or not other.is_background or other.is_in_flight:
                return True
            self.preempt(other, PreemptReason.DISPLACED, now, by=sequence, keeps_memory=True)
        self._counters.add("quarantined")
        return False

    def _wait_again(self, sequence: Sequence) -> None:
        sequence.move(SequenceState.WAITING)
        # Before it stops running, so that its tenant does not seem absent.
        self.queue.add(sequence)
        if sequence in self.paused:
            self.paused.leave_queue(sequence)
        self._stop_running(sequence)

    def _stop_running(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.queue.shares.count(sequence, running=-1)
        if (fair := self.queue.lane_of(sequence).fair) is not None:
            fair.leave(sequence)


def _all_but_first(by_tenant: dict[str, list[Sequence]]) -> list[Sequence]:
    """All but the most senior of each tenant. That one goes on, so every tenant makes progress."""
    return [sequence for own in by_tenant.values() for sequence in own[1:]]
