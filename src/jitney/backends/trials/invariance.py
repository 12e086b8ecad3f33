"""Tests whether a backend computes a sequence alike in every batch (invariant 4).

`is_invariant` computes one prompt and its continuation alone. It computes them again in pieces,
from a copy, and beside others, and compares logprobs to the last bit. Called in trials, never while
a backend serves: it leaves every slot empty.
"""

from collections.abc import Callable, Iterable, Sequence

from jitney.backends.trials.trial import SHAPE_SLOTS
from jitney.core.backend import Backend
from jitney.core.batch import Batch, Copy, Entry, MemoryOperation, Open, Sample, Sampling

LONG_TOKENS = 300
"""The length of a sequence that needs more cells or blocks than kernels take at once."""
PROMPT_TOKENS = 72
STEPS = 4
"""How many tokens are generated and compared."""
LOGPROBS = 20
PRIMES = (31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101)

Way = Callable[["_Sequences"], list[Sample]]


def is_invariant(backend: Backend, *, decodes_differ: bool) -> bool:
    """Whether every way of computing the same sequence has the same outcome.

    Where decodes differ, generated tokens are not computed again in a span.
    """
    expected = _alone(_Sequences(backend))
    is_alike = all(way(_Sequences(backend)) == expected for way in _WAYS)
    if is_alike and not decodes_differ:
        is_alike = _replayed(_Sequences(backend), expected) == expected[-1]
    backend.reset()
    return is_alike


class _Sequences:
    """One way of computing the sequence in an empty memory."""

    def __init__(self, backend: Backend) -> None:
        backend.reset()
        self._backend = backend
        self._number = 0
        self._lengths: dict[int, int] = {}
        self.length_max = backend.traits.model_len_max

    def open(self, *slots: int, copied: Sequence[MemoryOperation] = ()) -> None:
        """Begin a sequence in each of these slots."""
        sampling = Sampling(seed=0, prompt_count=PROMPT_TOKENS, logprobs=LOGPROBS)
        for slot in slots:
            self._lengths[slot] = 0
        self.run([], [*copied, *(Open(slot, sampling) for slot in slots)])

    def prompt(self, slot: int, count: int, *, of: int = 0, wants: bool = True) -> Entry:
        """The next tokens of a prompt; that of number 0 is the one that is compared."""
        start = self._lengths[slot]
        size = len(self._backend.vocabulary.pieces)
        tokens = tuple((at + 1) * PRIMES[of] % size for at in range(start, start + count))
        self._lengths[slot] = start + count
        return Entry(slot, start, tokens, wants_token=wants)

    def next_token(self, slot: int) -> Entry:
        """Continue the slot with the token that it sampled last."""
        start = self._lengths[slot]
        self._lengths[slot] = start + 1
        return Entry(slot, start, (), wants_token=True, continues=True)

    def skip(self, slot: int, count: int) -> None:
        """The slot holds this many tokens already."""
        self._lengths[slot] = count

    def run(
        self, entries: Iterable[Entry], operations: Iterable[MemoryOperation] = ()
    ) -> tuple[Sample, ...]:
        """One batch."""
        self._number += 1
        return self._backend.execute(Batch(self._number, tuple(operations), tuple(entries))).samples

    def generate(self, slot: int, first: Sample, beside: Sequence[int] = ()) -> list[Sample]:
        """The samples after a whole prompt, while others in these slots generate as well."""
        samples = [first]
        for _ in range(STEPS):
            entries = [self.next_token(each) for each in (*beside, slot)]
            samples.append(self.run(entries)[-1])
        return samples


def _alone(trial: _Sequences) -> list[Sample]:
    """The whole prompt in one span, alone."""
    trial.open(0)
    return trial.generate(0, trial.run([trial.prompt(0, PROMPT_TOKENS)])[0])


def _cut(trial: _Sequences) -> list[Sample]:
    """The prompt in pieces, small and large, the last one a single token."""
    trial.open(0)
    pieces = (1, 2, 3, 7, 8, 17, 33, 1)
    assert sum(pieces) == PROMPT_TOKENS
    for piece in pieces[:-1]:
        trial.run([trial.prompt(0, piece, wants=False)])
    return trial.generate(0, trial.run([trial.prompt(0, pieces[-1])])[0])


def _beside(count: int) -> Way:
    """The prompt in two pieces, beside `count` sequences that generate."""

    def way(trial: _Sequences) -> list[Sample]:
        # It stands in the middle of them.
        slot = count // 2
        others = [each for each in range(count + 1) if each != slot]
        trial.open(slot, *others)
        trial.run(trial.prompt(each, 2 + each % 5, of=1 + each % 15) for each in others)
        half = PROMPT_TOKENS // 2
        entry = trial.prompt(slot, half, wants=False)
        trial.run([*(trial.next_token(each) for each in others), entry])
        entry = trial.prompt(slot, PROMPT_TOKENS - half)
        samples = trial.run([*(trial.next_token(each) for each in others), entry])
        return trial.generate(slot, samples[-1], others)

    return way


def _beside_a_long_one(trial: _Sequences) -> list[Sample]:
    """The whole prompt, beside one that is several times as long."""
    trial.open(0, 1)
    length = min(LONG_TOKENS, trial.length_max - STEPS)
    trial.run([trial.prompt(1, length - 1, of=1, wants=False)])
    samples = trial.run([trial.prompt(1, 1, of=1), trial.prompt(0, PROMPT_TOKENS)])
    return trial.generate(0, samples[-1], [1])


def _copied(trial: _Sequences) -> list[Sample]:
    """Most of the prompt copied from another slot, which goes on beside it."""
    trial.open(0)
    trial.run([trial.prompt(0, PROMPT_TOKENS)])
    kept = PROMPT_TOKENS - 1
    trial.open(5, copied=[Copy(0, 5, kept)])
    trial.skip(5, kept)
    samples = trial.run([trial.next_token(0), trial.prompt(5, 1)])
    return trial.generate(5, samples[-1], [0])


def _replayed(trial: _Sequences, expected: list[Sample]) -> Sample:
    """The last sample, where all tokens before it are computed in two spans."""
    trial.open(0)
    trial.run([trial.prompt(0, PROMPT_TOKENS - 5, wants=False)])
    prompt = trial.prompt(0, 5)
    generated = tuple(sample.token or 0 for sample in expected[:-1])
    return trial.run([Entry(0, prompt.start, prompt.tokens + generated, wants_token=True)])[0]


_WAYS: tuple[Way, ...] = (
    _cut,
    *(_beside(count) for count in (1, 2, 6, SHAPE_SLOTS - 1)),
    _beside_a_long_one,
    _copied,
)
