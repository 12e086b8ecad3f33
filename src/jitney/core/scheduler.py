"""The scheduler: who runs in each tick, which span of tokens, which memory operations come first.

Sans-IO: it is told the time and the outcomes, and answers with batches and events. It owns every
sequence from submission to its end and is called from one thread only. Neither text nor native
memory is known here.

    submit, cancel, finish, expire      what the world wants
    plan(now) -> Batch                  what the backend shall do
    apply(batch, outcome) -> events     what it did; `fail` when it could not
    check()                             invariants 2, 3 and 7, recomputed from scratch
"""

import heapq
from collections import deque
from dataclasses import dataclass

from jitney.core import limits
from jitney.core.backend import Traits
from jitney.core.batch import Batch, Entry, Outcome, Sample
from jitney.core.cost import CostModel
from jitney.core.counters import Counters
from jitney.core.events import Event, FinishReason, PromptEvent, TokenEvent
from jitney.core.gauges import Gauges, Occupant
from jitney.core.mix import Budget, Wanted, share_budget
from jitney.core.picture import Picture, draw
from jitney.core.request import Request, RequestId
from jitney.core.roster import Roster
from jitney.core.sequence import Sequence, State, make_sequences
from jitney.core.settings import SchedulerSettings
from jitney.errors import Draining, InvalidRequest, QueueFull

RETRY_SHARE = 0.25
"""A refused caller is told to come back when this share of the waiting work will be done."""

DEADLINES_KEPT = 256
"""Deadlines of ended sequences that may lie about before they are cleared away."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch that has not returned, and whose sequence each of its entries is."""

    batch: Batch
    sequences: tuple[Sequence, ...]


class Scheduler:
    """Continuous batching over one backend's memory."""

    def __init__(
        self, settings: SchedulerSettings, traits: Traits, eos_tokens: tuple[int, ...]
    ) -> None:
        whole_blocks = traits.kv_tokens - traits.kv_tokens % traits.block_tokens
        assert settings.model_len_max <= whole_blocks, "a request that is accepted must fit alone"
        self._settings = settings
        self._decodes_differ = traits.decodes_differ
        self._eos_tokens = frozenset(eos_tokens)
        self._budget = Budget(
            settings.batch_tokens_max, settings.prefill_chunk, settings.stall_s_target
        )
        self.counters = Counters()
        self._roster = Roster(settings, traits, self.counters)
        self._cost = CostModel()
        self._flights: deque[Flight] = deque()
        self._deadlines: list[tuple[float, int, Sequence]] = []
        self._batch_number = 0
        self._drains = False

    def submit(self, request: Request, now: float) -> None:
        """Accept a request or raise: from here on it ends exactly once (invariant 1)."""
        if self._drains:
            raise Draining("the engine is closing and takes no new requests.")
        if request.id in self._roster.live:
            raise InvalidRequest(f"a request with the id {request.id!r} is live already.", "id")
        sequences = make_sequences(request, self._eos_tokens, self._settings.model_len_max, now)
        self._check_queue(sequences)
        self._roster.add(sequences)
        for sequence in sequences:
            for limit_s in self._limits_s(sequence):
                if limit_s is not None:
                    due = (now + limit_s, sequence.order, sequence)
                    heapq.heappush(self._deadlines, due)

    def cancel(self, request_id: RequestId, now: float) -> list[Event]:
        """End what is left of a request. An unknown or ended one is nobody's mistake."""
        sequences = list(self._roster.live.get(request_id, ()))
        if not sequences:
            self.counters.add("cancelled_finished")
        # What was planned meanwhile comes first: a start must not be told after an end.
        events = self._roster.take_events()
        for sequence in sequences:
            phase = "generating" if sequence.completion_count else "prefilling"
            if sequence.state is State.WAITING:
                phase = "waiting"
            self.counters.add(f"cancelled_{phase}")
            events.append(self._roster.end(sequence, FinishReason.CANCELLED, now))
        return events

    def finish(
        self, request_id: RequestId, index: int, reason: FinishReason, now: float
    ) -> list[Event]:
        """End one sequence on the verdict of whoever reads its text."""
        for sequence in self._roster.live.get(request_id, ()):
            if sequence.index == index:
                return [*self._roster.take_events(), self._roster.end(sequence, reason, now)]
        return []

    def expire(self, now: float) -> list[Event]:
        """End what is past its deadline (invariant 8)."""
        events = self._roster.take_events()
        self._forget_deadlines()
        while self._deadlines and self._deadlines[0][0] <= now:
            sequence = heapq.heappop(self._deadlines)[2]
            if sequence.state is State.FINISHED:
                continue
            wait_s, total_s = self._limits_s(sequence)
            has_run = sequence.started_at is not None
            # The same sums as when it was put here: a difference could round the other way.
            is_total = total_s is not None and sequence.arrived_at + total_s <= now
            is_wait = wait_s is not None and sequence.arrived_at + wait_s <= now and not has_run
            if is_total or is_wait:
                phase = "running" if has_run else "waiting"
                self.counters.add(f"deadline_{phase}")
                message = f"the request passed its deadline while {phase}."
                events.append(self._roster.end(sequence, FinishReason.DEADLINE, now, message))
        return events

    def drain(self) -> None:
        """Take no new requests; what was accepted runs to its end."""
        self._drains = True

    def plan(self, now: float) -> Batch | None:
        """The work of one tick, or None when there is nothing to do.

        There is no prefill phase and no decode phase. Every sequence has tokens known and tokens
        computed, and a batch lets the second catch up with the first: by one for a sequence that
        generates, by a span for one that has just arrived, was preempted, or lost its memory in
        a crash. First the waiting are admitted, so that they are part of this very batch; then
        the mix splits the budget; then each sequence, the most senior first, obtains the memory
        for its span, at the expense of cached prefixes and, at the worst, of its juniors,
        or of a tenant that holds more than its share.
        """
        self._roster.admit(now, drains=self._drains)
        entries: list[Entry] = []
        sequences: list[Sequence] = []
        for group in self._groups():
            for sequence, span in self._spans(group):
                # One further down the list may have been preempted for one above it.
                if sequence.state is State.RUNNING and self._obtain(sequence, span, now):
                    entries.append(_entry(sequence, span))
                    sequences.append(sequence)
            if entries:
                break
        if not entries:
            return None
        self._batch_number += 1
        operations = self._roster.memory.take_operations()
        batch = Batch(self._batch_number, operations, tuple(entries))
        assert batch.token_count <= self._settings.batch_tokens_max, batch.token_count
        self._flights.append(Flight(batch, tuple(sequences)))
        return batch

    @property
    def is_steady(self) -> bool:
        """Whether planning before the last outcome is known takes nothing from anybody.

        Nobody waits, and everyone makes one token after the other, with memory for the next: who
        is under way cannot be sent back to wait, and a slot that becomes free is given away at
        once.
        """
        roster = self._roster
        running, memory = roster.running, roster.memory
        if roster.queue.count or any(sequence.wanted_count > 1 for sequence in running):
            return False
        return memory.ledger.free + memory.cached_blocks(running) >= len(running)

    def apply(self, batch: Batch, outcome: Outcome, now: float) -> list[Event]:
        """Take in what came back: the only place where tokens are appended or become computed.

        The events of planning (starts, preemptions) come out here too.
        """
        flight = self._flights.popleft()
        assert flight.batch is batch, "outcomes come back in the order of their batches"
        assert outcome.number == batch.number, (outcome.number, batch.number)
        assert len(outcome.samples) == len(batch.entries), len(outcome.samples)
        events = self._roster.take_events()
        pairs = zip(batch.entries, outcome.samples, strict=True)
        for sequence, (entry, sample) in zip(flight.sequences, pairs, strict=True):
            # Not one that was cancelled, or ended by its text, while the batch was under way.
            if sequence.state is State.RUNNING:
                self._settle(sequence, entry, sample, now, events)
        decode_count = sum(entry.length == 1 for entry in batch.entries)
        self._cost.observe(decode_count, batch.token_count - decode_count, outcome.seconds)
        self._roster.gate.observe(outcome.seconds)
        return events

    def fail(self, message: str, now: float, *, blames: bool = True) -> list[Event]:
        """The backend lost its memory: what ran waits again, at nothing computed, and resumes.

        The sequences of the batch that failed are struck. From a number of strikes on, a suspect
        stands alone in its batch, so that the one that brings the backend down again and again
        ends alone (invariant 10). Nobody is to blame when the batch never reached the backend.
        """
        self.counters.add("backend_failures")
        # Outcomes come back in order, so it is the oldest batch that failed.
        struck = self._flights[0].sequences if self._flights and blames else ()
        self._flights.clear()
        self._roster.lose_memory()
        events = self._roster.take_events()
        for sequence in struck:
            if sequence.state is not State.WAITING:
                continue
            sequence.strikes += 1
            sequence.struck_at = sequence.known_count
            if sequence.strikes >= limits.STRIKES_MAX:
                self.counters.add("struck_out")
                events.append(self._roster.end(sequence, FinishReason.FAILED, now, message))
        return events

    @property
    def has_work(self) -> bool:
        """Whether any accepted request has not ended."""
        return bool(self._roster.live)

    @property
    def holds_answers(self) -> bool:
        """Whether a group is under way, whose answers are to be handed out together."""
        return self._roster.gate.holds_answers

    def wake_at(self, now: float) -> float | None:
        """When planning might change its mind though nothing arrives; None if never."""
        departure = self._roster.gate.wake_at(self._roster.queue.oldest())
        times = [] if departure is None else [departure]
        if self._deadlines:
            times.append(self._deadlines[0][0])
        return max(now, min(times)) if times else None

    def gauges(self) -> Gauges:
        """The levels and counters of this moment."""
        running, memory, queue = self._roster.running, self._roster.memory, self._roster.queue
        ledger = memory.ledger
        return Gauges(
            running_count=len(running),
            prefilling_count=sum(sequence.is_prefilling for sequence in running),
            waiting_count=queue.count,
            waiting_tokens=queue.token_count,
            deferred_count=min(self._roster.deferred_count, queue.count),
            cached_count=memory.cached_count,
            kv_tokens=ledger.capacity * ledger.block_tokens,
            kv_used=ledger.used * ledger.block_tokens,
            kv_cached=memory.cached_blocks(running) * ledger.block_tokens,
            slot_count=self._settings.sequences_max,
            fit=self._cost.fit,
            counters=self.counters.snapshot(),
        )

    def take_complaints(self) -> list[str]:
        """What a policy that is not ours did wrong since the last call, in words."""
        complaints = list(self._roster.complaints)
        self._roster.complaints.clear()
        return complaints

    def occupants(self) -> dict[int, Occupant]:
        """Who runs in which slot."""
        return {
            sequence.slot: Occupant(sequence.request.id, sequence.index)
            for sequence in self._roster.running
            if sequence.slot is not None
        }

    def picture(self, now: float) -> Picture:
        """Who holds which memory and why the waiting wait; made only when somebody looks."""
        return draw(self._roster, self._settings, now)

    def check(self) -> None:
        """Recompute every total and compare (invariants 2, 3 and 7)."""
        self._roster.check()

    def _check_queue(self, sequences: list[Sequence]) -> None:
        queue = self._roster.queue
        share, tenant = sequences[0].request.share, sequences[0].request.tenant
        if share is not None and not queue.shares.has_room(sequences):
            self.counters.add("share_full")
            held, retry_s = queue.shares.held(tenant), self._retry_s()
            raise QueueFull(
                f"{held.waiting_count} requests of this caller with {held.waiting_tokens} tokens "
                f"are waiting already, and its share of the queue is {share.waiting_max} and "
                f"{share.waiting_tokens_max}; try again in {retry_s:.1f} s.",
                retry_s,
            )
        count = queue.count + len(sequences)
        token_count = queue.token_count + sum(s.known_count for s in sequences)
        requests_max, tokens_max = (
            self._settings.queue_requests_max,
            self._settings.queue_tokens_max,
        )
        # An empty line takes any request that fits the model, however small its bound.
        if queue.count == 0 or (count <= requests_max and token_count <= tokens_max):
            return
        self.counters.add("queue_full")
        retry_s = self._retry_s()
        raise QueueFull(
            f"{queue.count} requests with {queue.token_count} tokens are waiting already "
            f"(the limits are {requests_max} and {tokens_max}); try again in {retry_s:.1f} s.",
            retry_s,
        )

    def _retry_s(self) -> float:
        rate = self._cost.tokens_per_s
        return RETRY_SHARE * self._roster.queue.work_count / rate if rate else 1.0

    def _limits_s(self, sequence: Sequence) -> tuple[float | None, float | None]:
        """How long it may wait for its first slot, and how long it may take in all."""
        request = sequence.request
        wait_s = self._settings.wait_s_max if request.wait_s_max is None else request.wait_s_max
        total_s = self._settings.total_s_max if request.total_s_max is None else request.total_s_max
        return wait_s, total_s

    def _groups(self) -> list[list[Sequence]]:
        """Who may stand in one batch: a suspect stands alone, so that blame is certain.

        The suspect and the others take turns; whoever cannot move leaves its turn to the rest.
        """
        running = self._roster.running
        suspects = [s for s in running if s.strikes >= limits.STRIKES_QUARANTINE]
        if not suspects:
            return [running]
        others = [s for s in running if s.strikes < limits.STRIKES_QUARANTINE]
        return [suspects, others] if self._batch_number % 2 else [others, suspects]

    def _forget_deadlines(self) -> None:
        """Drop those of ended sequences: the next one at once, all when they are the most."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].state is State.FINISHED:
            heapq.heappop(deadlines)
        if len(deadlines) > DEADLINES_KEPT + 4 * len(self._roster.live):
            deadlines[:] = [due for due in deadlines if due[2].state is not State.FINISHED]
            heapq.heapify(deadlines)

    def _spans(self, running: list[Sequence]) -> list[tuple[Sequence, int]]:
        """What each of these may compute in this tick, in order of seniority."""
        wanted = [self._wanted(sequence) for sequence in running]
        prefills = [
            Wanted(want, sequence.request.sharer)
            for sequence, want in zip(running, wanted, strict=True)
            if want > 1
        ]
        decode_count = sum(want == 1 for want in wanted)
        share = share_budget(self._settings.mix, decode_count, prefills, self._budget, self._cost)
        # When not every decode has a place in this tick, they take turns.
        left_out = decode_count - share.decode_count
        first = self._batch_number % decode_count if left_out else 0
        spans = iter(share.spans)
        decodes = 0
        chosen: list[tuple[Sequence, int]] = []
        for sequence, want in zip(running, wanted, strict=True):
            if want > 1:
                span = next(spans)
                if span:
                    chosen.append((sequence, span))
            elif want == 1:
                if (decodes - first) % decode_count < share.decode_count:
                    chosen.append((sequence, 1))
                decodes += 1
        return chosen

    def _wanted(self, sequence: Sequence) -> int:
        """Positions that are planned for a sequence at most."""
        want = sequence.wanted_count
        if want > 1 and self._decodes_differ:
            # What was generated is computed again as it was computed: one by one (invariant 4).
            want = max(1, min(want, sequence.prompt_count - sequence.planned))
        is_scored = sequence.sampling.prompt_logprobs is not None
        if want > 1 and is_scored and sequence.prompt_scored < sequence.prompt_count:
            return min(want, limits.SCORED_SPAN_MAX)
        return want

    def _obtain(self, sequence: Sequence, span: int, now: float) -> bool:
        """Memory for the sequence's span, if need be from others; false if it has to wait."""
        roster = self._roster
        length = sequence.planned + span
        while not roster.memory.grow(sequence, length):
            self.counters.add("kv_full")
            victim = roster.choose_victim(sequence)
            if victim is None:
                return False
            roster.send_back(victim, now, by=sequence)
        return True

    def _settle(
        self, sequence: Sequence, entry: Entry, sample: Sample, now: float, events: list[Event]
    ) -> None:
        roster, request = self._roster, sequence.request
        sequence.computed = entry.end
        if roster.queue.fair is not None and entry.wants_token:
            roster.queue.fair.charge(request.tenant, 1)
        if sequence.computed > sequence.struck_at:
            sequence.strikes = 0  # it got past the place where the backend failed
        kind = "completion" if entry.start >= sequence.prompt_count else "prompt"
        self.counters.add(f"computed_{kind}_tokens", entry.length)
        if sample.fault is not None or (entry.wants_token and sample.token is None):
            self.counters.add("entry_faults")
            message = sample.fault or "the backend returned no token."
            events.append(roster.end(sequence, FinishReason.FAILED, now, message))
            return
        if sample.prompt_logprobs:
            self._score(sequence, entry, sample, events)
        if sample.token is not None and entry.wants_token:
            sequence.pending -= 1
            sequence.tokens.append(sample.token)
        roster.memory.confirm(sequence)
        if sample.token is not None and entry.wants_token:
            self._extend(sequence, sample, now, events)

    def _extend(self, sequence: Sequence, sample: Sample, now: float, events: list[Event]) -> None:
        """Report a token, and the end of the sequence if this is it."""
        token = sample.token
        assert token is not None, "only called with a token"
        if token in sequence.end_tokens:
            stop_reason = None if token in self._eos_tokens else token
            event = self._roster.end(sequence, FinishReason.STOP, now, stop_reason=stop_reason)
            events.append(event)
            return
        request = sequence.request
        events.append(TokenEvent(request.id, sequence.index, now, token, sample.logprob))
        if sequence.known_count >= sequence.known_max:
            events.append(self._roster.end(sequence, FinishReason.LENGTH, now))

    def _score(self, sequence: Sequence, entry: Entry, sample: Sample, events: list[Event]) -> None:
        """Report logprobs of the prompt, but none twice when a span was computed again."""
        start = max(entry.start, 1)
        fresh = sample.prompt_logprobs[max(0, sequence.prompt_scored - start) :]
        if fresh:
            start = sequence.prompt_scored
            sequence.prompt_scored += len(fresh)
            events.append(PromptEvent(sequence.request.id, sequence.index, start, fresh))


def _entry(sequence: Sequence, span: int) -> Entry:
    """The entry for the sequence's next span; counts it as planned."""
    assert sequence.slot is not None, "only a sequence with a slot computes"
    start = sequence.planned
    tokens = tuple(sequence.tokens[start : start + span])
    continues = not tokens
    sequence.planned = start + span
    wants_token = sequence.planned == sequence.known_count + sequence.pending
    if wants_token:
        sequence.pending += 1
    return Entry(sequence.slot, start, tokens, wants_token, continues)
