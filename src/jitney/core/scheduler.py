"""The scheduler: which sequences run in each tick, with which spans and memory operations.

Sans-IO: it gets the time and the outcomes, and returns batches and events. It owns every sequence
from submission to its end. Only one thread calls it. It knows neither text nor native memory.

    submit, cancel, finish, expire,
    pause, resume, reprioritise         what callers want
    plan(now) -> PlannedBatch           what the backend has to do, and for which sequences
    apply(planned, outcome) -> events   what it did; `fail` when it failed
    check()                             invariants 2, 3 and 7, recomputed from scratch
    check_sample()                      a part of that in bounded time
"""

from jitney.core import limits
from jitney.core.admission import Admission
from jitney.core.backend import Traits
from jitney.core.batch import Batch, Entry, Fault, Outcome, Sample
from jitney.core.batch_choice import BatchChoice
from jitney.core.counters import Counters
from jitney.core.events import Event, FinishReason, PromptEvent, TokensEvent
from jitney.core.preemption import Preemption
from jitney.core.registry import Registry
from jitney.core.request import Priority, Request, RequestId
from jitney.core.rules.background import EARLY_S_MAX
from jitney.core.rules.cost import CostModel
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.rules.queue import check_room
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence, SequenceState, decodes_of, make_sequences
from jitney.core.snapshot import Detail, Snapshot, describe
from jitney.core.stored_prefixes import StoredPrefixes
from jitney.core.value import value
from jitney.errors import Draining, InvalidRequest

RETRY_PART = 0.25
"""A refused caller is asked to try again when this share of the waiting work is done."""


@value
class PlannedBatch:
    """A batch, the sequences of its entries in the same order, and the tokens of all of them.

    `single_count` entries have one position, and `decode_count` of these want a token. `opened` are
    those that get their slots with this batch, with or without an entry.
    """

    batch: Batch
    sequences: tuple[Sequence, ...]
    token_count: int
    single_count: int
    decode_count: int
    opened: tuple[Sequence, ...] = ()

    @property
    def implicated(self) -> tuple[Sequence, ...]:
        """Those who may be the cause if it fails."""
        return tuple(dict.fromkeys((*self.sequences, *self.opened)))


class Scheduler:
    """Continuous batching on one backend."""

    def __init__(
        self, settings: SchedulerSettings, traits: Traits, eos_tokens: tuple[int, ...]
    ) -> None:
        whole_blocks = traits.kv_tokens - traits.kv_tokens % traits.block_tokens
        assert settings.model_len_max <= whole_blocks, "a request that is accepted must fit alone"
        self._settings = settings
        self._eos_tokens = frozenset(eos_tokens)
        self.counters = Counters()
        self._registry = Registry(settings, traits, self.counters)
        self._cost = CostModel()
        self._preemption = Preemption(self._registry, settings, self.counters)
        self._admission = Admission(self._registry, self._preemption, settings, self.counters)
        self._choice = BatchChoice(settings, self._admission, self._cost, self.counters)
        self._batch_number = 0
        self._returned_number = 0
        self._drains = False
        self._ends_waits = False

    def submit(self, request: Request, now: float) -> None:
        """Accept a request or raise. An accepted one ends exactly once (invariant 1)."""
        if self._drains:
            raise Draining("The engine is closing and takes no new requests.")
        if request.id in self._registry.by_request:
            raise InvalidRequest(f"A request with the id {request.id!r} is live already.", "id")
        sequences = make_sequences(request, self._eos_tokens, self._settings.model_len_max, now)
        if request.waited_s is None:
            queue, retry_s = self._registry.queue, self._retry_s(request)
            check_room(queue, sequences, self._settings, self.counters, retry_s)
        self._registry.add(sequences, now)
        for sequence in sequences:
            if sequence.known_count >= sequence.known_max:
                # It was resumed after its last token; only its end was lost, or there is less room.
                self._registry.end(sequence, reason=FinishReason.LENGTH, now=now)

    def cancel(self, request_id: RequestId, now: float) -> list[Event]:
        """End the unfinished sequences of a request. An unknown or ended request is ignored."""
        sequences = list(self._registry.by_request.get(request_id, ()))
        if not sequences:
            self.counters["cancelled_finished"] += 1
        for sequence in sequences:
            phase = "generating" if sequence.completion_count else "prefilling"
            if sequence.state is SequenceState.WAITING:
                phase = "waiting"
            self.counters[f"cancelled_{phase}"] += 1
            self._registry.end(sequence, FinishReason.CANCELLED, now)
        return self._registry.take_events()

    def finish(
        self, request_id: RequestId, index: int, reason: FinishReason, now: float
    ) -> list[Event]:
        """End one sequence because its text is complete."""
        for sequence in self._registry.by_request.get(request_id, ()):
            if sequence.index == index:
                self._registry.end(sequence, reason, now)
                return self._registry.take_events()
        return []

    def pause(self, request_id: RequestId, now: float) -> PauseOutcome:
        """Pause a request until it is resumed: all its sequences, or none.

        Its memory stays as a cached prefix while there is room. Its deadline holds, and it keeps
        its age. It goes on by itself when its pauses reach PAUSE_S_MAX in all, or when the engine
        drains.
        """
        sequences = list(self._registry.by_request.get(request_id, ()))
        if not sequences:
            return PauseOutcome.ENDED
        if self._ends_waits:
            return PauseOutcome.NOT_NOW
        return self._registry.paused.begin(sequences, now)

    def resume(self, request_id: RequestId, now: float) -> None:
        """Let a paused request go on when it is its turn. Any other one is ignored."""
        for sequence in self._registry.by_request.get(request_id, ()):
            self._registry.paused.end(sequence, now)

    def reprioritise(self, request_id: RequestId, priority: Priority) -> None:
        """Change the class of a request. An unknown or ended one is ignored."""
        for sequence in self._registry.by_request.get(request_id, ()):
            self._registry.reprioritise(sequence, priority)

    def expire(self, now: float) -> list[Event]:
        """End sequences past their deadline (invariant 8), and pauses that reached their limit."""
        if self._registry.paused:
            self._registry.paused.end_due(now)
        for sequence in self._registry.deadlines.passed(now, self._registry.unfinished_max):
            self.counters[f"deadline_{sequence.state}"] += 1
            message = f"The request passed its deadline while {sequence.state}."
            self._registry.end(sequence, FinishReason.DEADLINE, now, message)
        return self._registry.take_events()

    def drain(self, now: float) -> None:
        """Take no new requests. Accepted ones run to their end, also paused ones."""
        self._drains = True
        self.end_waits(now)

    def end_waits(self, now: float) -> None:
        """From now on groups start without waiting to be full, and all pauses end."""
        self._ends_waits = True
        self._registry.paused.end_all(now)
        assert not self._registry.paused, "nothing waits for its caller any more"

    def stop_gathering(self) -> None:
        """Let waiting requests start without waiting for others: no more will come."""
        self._admission.stop_gathering()

    def plan(self, now: float) -> PlannedBatch | None:
        """The work of one tick, or None when there is nothing to do.

        There is no prefill phase and no decode phase. Every sequence has known tokens and computed
        tokens, and each batch lets computed catch up with known. A generating sequence needs one
        token. A sequence that is new, was preempted, or lost its memory in a crash needs a span.
        First, waiting sequences are admitted, so that they are part of this batch. Then the mix
        splits the budget. Then each sequence gets the memory for its span, the most senior first.
        If memory is short, cached prefixes are evicted; after that, background sequences, those of
        a tenant above its share, or junior ones are preempted.
        """
        self._preemption.stop_paused(now)
        if not self._choice.is_trial(self._batch_number):
            self._admission.admit(now, starts_now=self._ends_waits)
        self._registry.note_elders(now)
        self._registry.keep_states()
        decoding: list[Sequence] = []
        computing: list[Sequence] = []
        spans: list[Entry] = []
        token_count = single_count = 0
        grow = self._registry.memory.ledger.grow
        for candidates in self._choice.candidates(self._batch_number):
            for sequence, span in zip(*self._choice.spans(candidates), strict=True):
                # A sequence may have been preempted for one before it in this loop.
                if sequence.slot is None:
                    continue
                has_room = grow(sequence.slot, sequence.planned + span)
                if not has_room and not self._preemption.obtain(sequence, span, now):
                    continue
                wants_token = sequence.plan(span)
                token_count += span
                single_count += span == 1
                if span == 1 and wants_token:
                    decoding.append(sequence)
                else:
                    computing.append(sequence)
                    spans.append(sequence.entry(span, wants_token))
            if decoding or computing:
                break
        else:
            return None
        self._batch_number += 1
        operations = self._registry.memory.take_operations()
        batch = Batch(self._batch_number, operations, tuple(spans), decodes_of(decoding))
        sequences = (*decoding, *computing)
        assert len(sequences) <= self._settings.max_num_seqs, len(sequences)
        assert token_count <= self._settings.max_num_batched_tokens, token_count
        opened = self._registry.take_opened()
        return PlannedBatch(batch, sequences, token_count, single_count, len(decoding), opened)

    @property
    def is_steady(self) -> bool:
        """Whether the next batch can be planned before the last outcome is known.

        That is so if everybody who waits, and whom the gate lets in, finds room without the end of
        a running one, and every running one has memory for its next token, or for what is left of
        its prompt. Otherwise planning early would be a loss: a sequence in flight cannot be
        preempted, and a slot that becomes free should go to a waiting sequence at once. A long tick
        with background work is not planned early: a live request that comes should not wait for it.
        """
        running, memory = self._registry.running, self._registry.memory
        if self._admission.is_room_wanted:
            return False
        prefilling = [each for each in self._registry.prefilling if each.wanted_count > 1]
        is_long = bool(prefilling) or self._cost.decodes_s(len(running)) > EARLY_S_MAX
        if self._registry.background_count and is_long:
            return False
        if self._registry.paused and any(each in self._registry.paused for each in running):
            return False
        promised = len(running) + memory.blocks_promised(prefilling)
        return memory.ledger.free + memory.cached_blocks(running) >= promised

    def apply(self, planned: PlannedBatch, outcome: Outcome, now: float) -> list[Event]:
        """Apply an outcome. Only here tokens are appended and become computed.

        The events of planning are returned here too, if nobody took them.
        """
        batch = planned.batch
        self._returned_number += 1
        assert batch.number == self._returned_number, "outcomes come in the order of their batches"
        assert outcome.number == batch.number, (outcome.number, batch.number)
        assert len(outcome.tokens) == len(planned.sequences), len(outcome.tokens)
        made = TokensEvent(now)
        registry = self._registry
        registry.events.append(made)
        decode_count, starts = planned.decode_count, batch.decodes.starts
        of_prompts = of_completions = 0
        for place, sequence in enumerate(planned.sequences):
            # It may have been cancelled, or ended by its text, while the batch was in flight.
            sample = outcome.more.get(place)
            if sequence.slot is None:
                if sample is not None and sample.fault is not None:
                    registry.memory.forget(sequence)
                continue
            if place < decode_count:
                start, length, wants_token = starts[place], 1, True
            else:
                entry = batch.spans[place - decode_count]
                start, length, wants_token = entry.start, entry.length, entry.wants_token
            of_prompt = sequence.compute(start, length)
            of_prompts += of_prompt
            of_completions += length - of_prompt
            if sample is not None and not self._take_more(sequence, start, sample, now):
                continue
            if of_prompt and sequence.computed >= sequence.prompt_count:
                self.stored.store(sequence)
            if wants_token:
                self._take_token(sequence, outcome.tokens[place], sample, made)
            else:
                registry.memory.confirm(sequence)
            if place >= decode_count and not sequence.is_prefilling:
                registry.prefilling.discard(sequence)
        if not made.tokens:
            registry.events.remove(made)
        self.counters["computed_prompt_tokens"] += of_prompts
        self.counters["computed_completion_tokens"] += of_completions
        single_count = planned.single_count
        self._cost.observe(single_count, planned.token_count - single_count, outcome.seconds)
        registry.gate.observe(self._cost.fit)
        return registry.take_events()

    def fail(self, message: str, now: float, failed: tuple[Sequence, ...] = ()) -> list[Event]:
        """The backend lost its memory: what ran waits again, at nothing computed, and resumes.

        No batch that was planned comes back. `failed` are those who may be why a batch
        failed. A sequence with several failures in a row is a suspect and is alone in its batch, so
        that the one that brings the backend down again and again ends alone (invariant 10).
        """
        self.counters["backend_failures"] += 1
        self._returned_number = self._batch_number
        self._registry.lose_memory()
        assert self._registry.memory.ledger.used == 0, "the memory is lost"
        for sequence in failed:
            if sequence.state is not SequenceState.WAITING:
                continue
            sequence.history.failed_count += 1
            sequence.history.failed_known = sequence.known_count
            if sequence.history.failed_count >= limits.FAILURES_MAX:
                self.counters["struck_out"] += 1
                self._registry.end(sequence, FinishReason.FAILED, now, message)
        return self._registry.take_events()

    @property
    def stored(self) -> StoredPrefixes:
        """What asks for prefixes on disk, and takes the answers."""
        return self._registry.memory.stored

    def take_events(self) -> list[Event]:
        """The events of planning (starts, preemptions), without waiting for the outcome."""
        return self._registry.take_events()

    @property
    def holds_answers(self) -> bool:
        """Whether a group is left whose answers are given out together."""
        registry = self._registry
        return registry.gate.holds_answers(self._admission.newcomers(registry.queue.shares.full))

    @property
    def deadline_at(self) -> float | None:
        """The next time at which a deadline may pass."""
        return self._registry.deadlines.next_at

    def wake_at(self, now: float) -> float | None:
        """When planning may have a new result though nothing arrives; None if never."""
        registry, admission = self._registry, self._admission
        held_back = admission.held_back or frozenset()
        joining = registry.gate.wake_at(admission.newcomers(held_back))
        resuming = registry.paused.end_at if registry.paused else None
        fetching = self.stored.wake_at(now)
        if fetching is not None and joining is not None and joining <= now:
            joining = None  # who may join waits for the disk
        times = (joining, resuming, fetching, registry.deadlines.next_at)
        known = [each for each in times if each is not None]
        return max(now, min(known)) if known else None

    def snapshot(self) -> Snapshot:
        """The levels and counters now."""
        running, memory, queue = self._registry.running, self._registry.memory, self._registry.queue
        ledger, waiting_count = memory.ledger, queue.count
        paused = [each.state is SequenceState.WAITING for each in self._registry.paused]
        prefills = [each.known_count - each.computed for each in self._registry.prefilling]
        return Snapshot(
            running_count=len(running),
            prefilling_count=len(prefills),
            waiting_count=waiting_count,
            paused_count=sum(paused),
            waiting_tokens=queue.token_count,
            background_running=self._registry.background_count,
            background_waiting=queue.background.count,
            background_tokens=queue.background.token_count,
            prefill_left=sum(prefills),
            deferred_count=min(self._admission.deferred_count, waiting_count),
            cached_count=memory.cached_count,
            kv_tokens=ledger.capacity * ledger.block_tokens,
            kv_used=ledger.used * ledger.block_tokens,
            kv_cached=memory.cached_blocks(running) * ledger.block_tokens,
            slot_count=self._settings.max_num_seqs,
            fit=self._cost.fit,
            prefill_token_s=self._cost.prefill_token_s,
            counters=dict(self.counters),
        )

    @property
    def complaints(self) -> list[str]:
        """Sentences about mistakes of a user's policy, to be logged and cleared."""
        return self._registry.complaints

    def heads(self, strides: int) -> frozenset[int]:
        """Keys of every prefix in memory, each `strides` strides long or a multiple of it."""
        return self._registry.memory.heads(strides)

    def detail(self, now: float) -> Detail:
        """Which sequence holds which memory, and why others wait. Made only on demand."""
        return describe(self._admission, self._settings, now)

    def check(self) -> None:
        """Recompute every total and compare (invariants 2, 3 and 7)."""
        self._registry.check()

    def check_sample(self) -> None:
        """A part of `check` in bounded time, each time another one."""
        self._registry.check_sample()

    def _retry_s(self, request: Request) -> float:
        rate, queue = self._cost.tokens_per_s, self._registry.queue
        work_count = queue.live.work_count
        if request.is_background:
            work_count += queue.background.work_count
        return RETRY_PART * work_count / rate if rate else 1.0

    def _take_more(self, sequence: Sequence, start: int, sample: Sample, now: float) -> bool:
        """What a sample says beside its token; false if its sequence has failed."""
        if sample.fault is not None:
            self._fail_entry(sequence, sample.fault, now)
        elif sample.prompt_logprobs:
            self._report_prompt_logprobs(sequence, start, sample)
        return sample.fault is None

    def _take_token(
        self, sequence: Sequence, token: int, sample: Sample | None, made: TokensEvent
    ) -> None:
        """Append the token that it wanted and report it, and its end if the token ends it."""
        registry = self._registry
        if (fair := registry.queue.live.fair) is not None:
            fair = registry.queue.lane_of(sequence).fair or fair
            fair.charge(sequence.request.tenant, 1)
        if token < 0:
            self._fail_entry(sequence, Fault("The backend returned no token."), made.at)
            return
        sequence.pending -= 1
        assert sequence.pending >= 0, "a token that nobody planned"
        sequence.tokens.append(token)
        registry.memory.confirm(sequence)
        if token in sequence.sampling.end_tokens:
            stop_reason = None if token in self._eos_tokens else token
            registry.end(sequence, FinishReason.STOP, made.at, stop_reason=stop_reason)
            return
        if sample is not None and sample.logprob is not None:
            made.logprobs[len(made.tokens)] = sample.logprob
        made.names.append(sequence.name)
        made.tokens.append(token)
        if len(sequence.tokens) >= sequence.known_max:
            registry.end(sequence, FinishReason.LENGTH, made.at)

    def _fail_entry(self, sequence: Sequence, fault: Fault, now: float) -> None:
        self.counters["entry_faults"] += 1
        reason = FinishReason.FAILED
        self._registry.end(sequence, reason, now, fault.message, fault_kind=fault.kind)

    def _report_prompt_logprobs(self, sequence: Sequence, start: int, sample: Sample) -> None:
        """Report logprobs of the prompt. If a span was computed again, none is reported twice."""
        start, history = max(start, 1), sequence.history
        assert start <= history.scored_count, "no position is left out"
        fresh = sample.prompt_logprobs[max(0, history.scored_count - start) :]
        if fresh:
            start = history.scored_count
            history.scored_count += len(fresh)
            event = PromptEvent(sequence.request.id, sequence.index, start, fresh)
            self._registry.events.append(event)
