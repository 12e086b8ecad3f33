"""Measures how fast a loaded backend runs its model: prompts and decodes, for a short time.

Called in the child of a trial.
"""

from collections.abc import Sequence
from time import perf_counter

from jitney.backends.trials.trial_batches import TrialBatches
from jitney.core.backend import Backend
from jitney.core.batch import Entry, Release, Sampling
from jitney.errors import ModelError

PROMPT_TOKENS = 128
COMPLETION_TOKENS = 64
"""The lengths of a usual request. The speed is for one such request per sequence."""
STEPS_MAX = 48
STEPS_MIN = 3
DECODE_S = 1.5
PREFILL_S = 8.0
"""After this time, prompts are copies of the first one: large models are slow."""


class SpeedMeasurement:
    """The passes of one measurement, in order.

    Of each kind of pass the fastest counts: the first ones prepare things for later ones, and other
    programs on the machine can only slow a pass down.
    """

    def __init__(self, backend: Backend, sequences: int) -> None:
        self._sequences = range(sequences)
        length_max = backend.traits.model_len_max
        self._prompt = min(PROMPT_TOKENS, max(length_max // 2, 2))
        self._steps = max(min(STEPS_MAX, length_max - self._prompt), 1)
        self._batches = TrialBatches(backend, Sampling(seed=0, prompt_count=self._prompt))

    def speed(self) -> float:
        """Tokens per second where each sequence is a usual request."""
        count = len(self._sequences)
        token_s = self._prefill_s() / self._prompt
        step_s = self._decode_s()
        return (
            count
            * COMPLETION_TOKENS
            / (count * token_s * PROMPT_TOKENS + COMPLETION_TOKENS * step_s)
        )

    def compute_answer(self) -> None:
        """Compute a prompt, and a token after it. Raises ModelError if they are no numbers."""
        self._prompt_s(0)
        self._run([self._batches.next_token(0)])

    def _prompt_s(self, slot: int) -> float:
        """Compute a prompt in an empty slot. Returns its seconds."""
        self._batches.open(slot)
        return self._run([self._batches.prompt(slot, self._prompt)])

    def _prefill_s(self) -> float:
        """Seconds of one prompt. Afterwards all sequences have computed theirs."""
        seconds = [self._prompt_s(0)]
        # A second pass is needed even for one sequence: the first one may be slow.
        self._batches.run([], [Release(0)])
        seconds.append(self._prompt_s(0))
        for slot in self._sequences[1:]:
            if sum(seconds) < PREFILL_S:
                seconds.append(self._prompt_s(slot))
            else:
                self._batches.copy(0, slot, self._prompt - 1)
                self._run([self._batches.prompt(slot, 1)])
        return min(seconds)

    def _decode_s(self) -> float:
        """Seconds of one pass that adds a token to every sequence."""
        seconds: list[float] = []
        while len(seconds) < self._steps and (len(seconds) < STEPS_MIN or sum(seconds) < DECODE_S):
            seconds.append(self._run([self._batches.next_token(slot) for slot in self._sequences]))
        return min(seconds)

    def _run(self, entries: Sequence[Entry]) -> float:
        start = perf_counter()
        samples = self._batches.run(entries)
        seconds = perf_counter() - start
        for sample in samples:
            if sample.fault is not None:
                raise ModelError(f"{sample.fault.message.rstrip('.')}; its weights are damaged.")
        return seconds
