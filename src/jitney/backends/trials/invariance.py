"""Tests whether a backend computes a sequence alike in every batch (invariant 4).

`is_invariant` computes one prompt and its continuation alone. It computes them again in pieces,
from a copy, and beside others, and compares logprobs to the last bit. Called in trials, never while
a backend serves: it leaves every slot empty.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from jitney.backends.trials.trial import SHAPE_SLOTS
from jitney.backends.trials.trial_batches import TrialBatches
from jitney.core.backend import Backend
from jitney.core.batch import Sample, Sampling

LONG_TOKENS = 300
"""The length of a sequence that needs more cells or blocks than kernels take at once."""
PROMPT_TOKENS = 72
STEPS = 4
"""How many tokens are generated and compared."""
SAMPLING = Sampling(seed=0, prompt_count=PROMPT_TOKENS, logprobs=20)

Way = Callable[[TrialBatches], list[Sample]]


def is_invariant(backend: Backend, *, decodes_differ: bool) -> bool:
    """Whether every way of computing the same sequence has the same outcome.

    Where decodes differ, generated tokens are not computed again in a span.
    """
    expected = _alone(TrialBatches(backend, SAMPLING))
    is_alike = all(way(TrialBatches(backend, SAMPLING)) == expected for way in _WAYS)
    if is_alike and not decodes_differ:
        is_alike = _replayed(TrialBatches(backend, SAMPLING), expected) == expected[-1]
    backend.reset()
    return is_alike


def _generate(
    trial: TrialBatches, slot: int, first: Sample, beside: Sequence[int] = ()
) -> list[Sample]:
    """The samples after a whole prompt, while others in these slots generate as well."""
    samples = [first]
    for _ in range(STEPS):
        entries = [trial.next_token(each) for each in (*beside, slot)]
        samples.append(trial.run(entries)[-1])
    return samples


def _alone(trial: TrialBatches) -> list[Sample]:
    """The whole prompt in one span, alone."""
    trial.open(0)
    return _generate(trial, 0, trial.run([trial.prompt(0, PROMPT_TOKENS)])[0])


def _cut(trial: TrialBatches) -> list[Sample]:
    """The prompt in pieces, small and large, the last one a single token."""
    trial.open(0)
    pieces = (1, 2, 3, 7, 8, 17, 33, 1)
    assert sum(pieces) == PROMPT_TOKENS
    for piece in pieces[:-1]:
        trial.run([trial.prompt(0, piece, wants=False)])
    return _generate(trial, 0, trial.run([trial.prompt(0, pieces[-1])])[0])


def _beside(count: int) -> Way:
    """The prompt in two pieces, beside `count` sequences that generate."""

    def way(trial: TrialBatches) -> list[Sample]:
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
        return _generate(trial, slot, samples[-1], others)

    return way


def _beside_a_long_one(trial: TrialBatches) -> list[Sample]:
    """The whole prompt, beside one that is several times as long."""
    trial.open(0, 1)
    length = min(LONG_TOKENS, trial.length_max - STEPS)
    trial.run([trial.prompt(1, length - 1, of=1, wants=False)])
    samples = trial.run([trial.prompt(1, 1, of=1), trial.prompt(0, PROMPT_TOKENS)])
    return _generate(trial, 0, samples[-1], [1])


def _copied(trial: TrialBatches) -> list[Sample]:
    """Most of the prompt copied from another slot, which goes on beside it."""
    trial.open(0)
    trial.run([trial.prompt(0, PROMPT_TOKENS)])
    trial.copy(0, 5, PROMPT_TOKENS - 1)
    samples = trial.run([trial.next_token(0), trial.prompt(5, 1)])
    return _generate(trial, 5, samples[-1], [0])


def _replayed(trial: TrialBatches, expected: list[Sample]) -> Sample:
    """The last sample, where all tokens before it are computed in two spans."""
    trial.open(0)
    trial.run([trial.prompt(0, PROMPT_TOKENS - 5, wants=False)])
    entry = trial.prompt(0, 5)
    generated = tuple(sample.token or 0 for sample in expected[:-1])
    return trial.run([replace(entry, tokens=entry.tokens + generated)])[0]


_WAYS: tuple[Way, ...] = (
    _cut,
    *(_beside(count) for count in (1, 2, 6, SHAPE_SLOTS - 1)),
    _beside_a_long_one,
    _copied,
)
