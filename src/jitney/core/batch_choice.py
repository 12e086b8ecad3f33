"""Chooses which running sequences are in the next batch, and the span of tokens of each.

The scheduler checks later whether there is memory for it. Called by the scheduler only.

Tests: tests/unit/core/rules/test_mix.py and tests/simulation.
"""

from collections.abc import Iterator
from dataclasses import replace

from jitney.core.admission import Admission
from jitney.core.counters import Counters
from jitney.core.rules.background import background_budget, background_of
from jitney.core.rules.cost import CostModel
from jitney.core.rules.mix import Budget, Prefill, split_budget, within_stall
from jitney.core.scheduler_settings import Mix, SchedulerSettings
from jitney.core.sequence import Sequence

ChosenSpans = tuple[list[Sequence], list[int]]
"""Sequences, and how many positions each of them gets in a tick."""


class BatchChoice:
    """Chooses the running sequences of each tick."""

    def __init__(
        self,
        settings: SchedulerSettings,
        admission: Admission,
        cost: CostModel,
        counters: Counters,
    ) -> None:
        self._settings = settings
        self._admission = admission
        self._registry = admission.registry
        self._cost = cost
        self._counters = counters
        self._decode_turns = [0, 0]
        """Of the live ones, and of the background ones."""
        self._prefill_turn = 0
        self._budget = Budget(
            settings.max_num_batched_tokens,
            settings.prefill_chunk,
            settings.stall_s_target,
            settings.prefill_batch_size,
            settings.decode_batch_size,
        )

    def candidates(self, batch_number: int) -> Iterator[list[Sequence]]:
        """The sequences that may be one batch together, in the order in which to try them.

        A suspect is alone in its batch, and nobody else is opened in it, so that its guilt is
        certain. The suspect and the others take turns. Under the mix `separate`, prefills and
        decodes take turns too. If none of them can run, the next ones are tried. Background
        sequences may have to sit out.
        """
        running = self._taking_part()
        suspects = self._suspects(running)
        if not suspects:
            yield from self._apart(running, batch_number)
            return
        others = [sequence for sequence in running if not sequence.is_suspect]
        # Each of the two has every second batch; under `separate` it counts its own ones.
        is_first = batch_number % 2 or self._is_opened(suspects)
        for each in [suspects, others] if is_first else [others, suspects]:
            if each is others or not self._is_opened(others):
                yield from self._apart(each, batch_number // 2)

    def is_trial(self, batch_number: int) -> bool:
        """Whether the next batch is that of a suspect that runs: then nobody is admitted."""
        suspects = self._suspects(self._registry.running)
        if not suspects or not self._registry.wanted(suspects[0]):
            return False
        if suspects[0].is_background and self._admission.is_live_awaited:
            return False
        return batch_number % 2 == 1 or self._is_opened(suspects)

    def _suspects(self, running: list[Sequence]) -> list[Sequence]:
        """The suspect of these, if there is one."""
        found = [each for each in running if each.history.failed_count and each.is_suspect]
        assert len(found) <= 1, "suspects run one at a time"
        return found

    def _is_opened(self, sequences: list[Sequence]) -> bool:
        """Whether the next batch opens one of these."""
        return any(each in self._registry.opened for each in sequences)

    def spans(self, candidates: list[Sequence]) -> ChosenSpans:
        """The span that each of these may compute in this tick, in order of seniority."""
        if not self._registry.background_count:
            # A copy: who is preempted for one of these is taken out of the running ones.
            return self._chosen(list(candidates))
        background = background_of(candidates)
        live, live_spans = self._chosen(candidates[: len(candidates) - len(background)])
        others, spans = self._chosen(background, len(live))
        return live + others, live_spans + spans

    def _taking_part(self) -> list[Sequence]:
        """The running sequences that may be in the next batch."""
        running = self._registry.running
        # Background sequences are the last of them.
        if not running or not running[-1].is_background or not self._admission.is_live_awaited:
            return running
        self._counters["sat_out"] += 1
        is_live_here = self._registry.queue.live.count or not running[0].is_background
        assert is_live_here, "a live one is awaited"
        return [sequence for sequence in running if not sequence.is_background]

    def _chosen(self, sequences: list[Sequence], live_count: int | None = None) -> ChosenSpans:
        """The spans of these, if they have one: live sequences, or background ones beside so many
        live decodes."""
        wants = self._registry.wanted_by(sequences)
        decode_count = wants.count(1)
        prefills = []
        if decode_count < len(wants):
            pairs = zip(sequences, wants, strict=True)
            prefills = [Prefill(n, each.request.limited_tenant) for each, n in pairs if n > 1]
        decodes_max, budget = decode_count, self._budget_of(prefills)
        if live_count is not None:
            decodes_max, budget = background_budget(live_count, decode_count, budget, self._cost)
        split = split_budget(self._settings.mix, decodes_max, prefills, budget, self._cost)
        assert split.decode_count <= decode_count, split
        # When this tick has no room for every decode, they take turns.
        turns, is_background = self._decode_turns, live_count is not None
        first = turns[is_background] % decode_count if split.decode_count < decode_count else 0
        turns[is_background] += split.decode_count
        if split.decode_count == len(wants):
            return sequences, wants  # all generate, and there is room for each
        prefill_spans = iter(split.spans)
        decodes = 0
        chosen: ChosenSpans = [], []
        for sequence, want in zip(sequences, wants, strict=True):
            span = 0
            if want > 1:
                span = next(prefill_spans)
            elif want == 1:
                span = int((decodes - first) % decode_count < split.decode_count)
                decodes += 1
            if span:
                chosen[0].append(sequence)
                chosen[1].append(span)
        assert next(prefill_spans, None) is None, "every span has its prefill"
        return chosen

    def _apart(self, sequences: list[Sequence], turn: int) -> Iterator[list[Sequence]]:
        """All of them; under `separate`, the prefills and the decodes, of which one has its turn.

        Those that get the budget may find no memory. The most senior always does, because it takes
        it from others. So it is tried last, alone: something goes on in every tick.
        """
        if self._settings.mix is not Mix.SEPARATE:
            yield sequences
        else:
            prefills = [each for each in sequences if self._registry.wanted(each) > 1]
            decodes = [each for each in sequences if self._registry.wanted(each) == 1]
            yield from (decodes, prefills) if turn % 2 else (prefills, decodes)
        yield [each for each in sequences if self._registry.wanted(each)][:1]

    def _budget_of(self, prefills: list[Prefill]) -> Budget:
        """The budget of a tick. That of prefills without decodes is smaller if a decode waits."""
        if self._settings.mix is not Mix.SEPARATE or not prefills:
            return self._budget
        self._prefill_turn += 1
        budget = replace(self._budget, turn=self._prefill_turn)
        is_awaited = 1 in map(self._registry.wanted, self._registry.running)
        return within_stall(budget, self._cost) if is_awaited else budget
