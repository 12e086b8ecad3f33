"""Measures how fast a loaded backend runs its model: prompts and decodes, for a short time.

Called in the child of a trial.
"""

from time import perf_counter

from jitney.core.backend import Backend
from jitney.core.batch import Batch, Copy, Entry, MemoryOperation, Open, Release, Sampling
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
        self._backend = backend
        self._sequences = sequences
        self._number = 0
        length_max = backend.traits.model_len_max
        self._prompt = min(PROMPT_TOKENS, max(length_max // 2, 2))
        self._steps = max(min(STEPS_MAX, length_max - self._prompt), 1)

    def speed(self) -> float:
        """Tokens per second where each sequence is a usual request."""
        token_s = self._prefill_s() / self._prompt
        step_s = self._decode_s()
        request_s = self._sequences * token_s * PROMPT_TOKENS + COMPLETION_TOKENS * step_s
        return self._sequences * COMPLETION_TOKENS / request_s

    def compute_prompt(self) -> float:
        """Compute the first prompt. Returns its seconds. Raises ModelError where it fails."""
        return self._prefill((self._open(0),), 0)

    def _prefill_s(self) -> float:
        """Seconds of one prompt. Afterwards all sequences have computed theirs."""
        taken = [self.compute_prompt()]
        # A second pass is needed even for one sequence: the first one may be slow.
        taken.append(self._prefill((Release(0), self._open(0)), 0))
        for slot in range(1, self._sequences):
            if sum(taken) < PREFILL_S:
                taken.append(self._prefill((self._open(slot),), slot))
            else:
                copied = (Copy(0, slot, self._prompt - 1), self._open(slot))
                self._prefill(copied, slot, start=self._prompt - 1)
        return min(taken)

    def _prefill(
        self, operations: tuple[MemoryOperation, ...], slot: int, *, start: int = 0
    ) -> float:
        tokens = tuple(self._token(slot + index) for index in range(start, self._prompt))
        return self._run(operations, (Entry(slot, start, tokens, wants_token=True),))

    def _decode_s(self) -> float:
        """Seconds of one pass that adds a token to every sequence."""
        taken: list[float] = []
        while len(taken) < self._steps and (len(taken) < STEPS_MIN or sum(taken) < DECODE_S):
            start = self._prompt + len(taken)
            entries = tuple(
                Entry(slot, start, (), wants_token=True, continues=True)
                for slot in range(self._sequences)
            )
            taken.append(self._run((), entries))
        return min(taken)

    def _run(self, operations: tuple[MemoryOperation, ...], entries: tuple[Entry, ...]) -> float:
        self._number += 1
        start = perf_counter()
        outcome = self._backend.execute(Batch(self._number, operations, entries))
        seconds = perf_counter() - start
        for sample in outcome.samples:
            if sample.fault is not None:
                raise ModelError(f"{sample.fault.message.rstrip('.')}; its weights are damaged.")
        return seconds

    def _open(self, slot: int) -> Open:
        return Open(slot, Sampling(seed=0, prompt_count=self._prompt))

    def _token(self, index: int) -> int:
        return index * 37 % len(self._backend.vocabulary.pieces)
