"""`TrialBatches`: runs sequences on a loaded backend, batch by batch.

Called in the child of a trial, never while a backend serves: it begins with every slot empty.

Tests: tests/unit/backends/trials/test_measure.py, test_invariance.py and test_numpy_check.py.
"""

from collections.abc import Iterable, Sequence

from jitney.core.backend import Backend
from jitney.core.batch import Batch, Copy, Entry, MemoryOperation, Open, Sample, Sampling

PRIMES = (31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101)


class TrialBatches:
    """The batches of one trial. All its sequences are sampled alike."""

    def __init__(self, backend: Backend, sampling: Sampling) -> None:
        backend.reset()
        self._backend = backend
        self._sampling = sampling
        self._number = 0
        self.length_max = backend.traits.model_len_max
        self._lengths: dict[int, int] = {}
        """How many tokens each slot holds."""

    def open(self, *slots: int) -> None:
        """Begin a sequence in each of these empty slots."""
        self._lengths |= dict.fromkeys(slots, 0)
        self.run([], [Open(slot, self._sampling) for slot in slots])

    def copy(self, source: int, target: int, length: int) -> None:
        """Begin a sequence in an empty slot with the first tokens of another one."""
        self._lengths[target] = length
        self.run([], [Copy(source, target, length), Open(target, self._sampling)])

    def prompt(self, slot: int, count: int, *, of: int = 0, wants: bool = True) -> Entry:
        """The next tokens of a prompt; `of` is the number of the prompt."""
        start = self._lengths[slot]
        size = len(self._backend.vocabulary.pieces)
        tokens = [(at + 1) * PRIMES[of] % size for at in range(start, start + count)]
        return self.span(slot, tokens, wants=wants)

    def span(self, slot: int, tokens: Sequence[int], *, wants: bool = True) -> Entry:
        """These tokens after those that the slot holds."""
        start = self._lengths[slot]
        self._lengths[slot] = start + len(tokens)
        return Entry(slot, start, tuple(tokens), wants_token=wants)

    def next_token(self, slot: int) -> Entry:
        """Continue the slot with the token that it sampled last."""
        start = self._lengths[slot]
        self._lengths[slot] = start + 1
        return Entry(slot, start, (), wants_token=True, continues=True)

    def run(
        self, entries: Iterable[Entry], operations: Iterable[MemoryOperation] = ()
    ) -> tuple[Sample, ...]:
        """One batch."""
        self._number += 1
        return self._backend.execute(Batch(self._number, tuple(operations), tuple(entries))).samples
