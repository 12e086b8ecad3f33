"""Faults: a backend that fails, crashes, answers nonsense or dawdles, and a clock that jumps.

`FaultyBackend` stands between the engine and the fake backend and reports what it does. It holds
the engine to the contract, too: after a failure nothing may be sent before a reset, and a batch
that the fake backend refuses by itself is a mistake of the core, never an injected fault.
"""

from dataclasses import replace
from random import Random

from jitney.backends.fake import FakeBackend
from jitney.core.backend import Traits, Vocabulary
from jitney.core.batch import Batch, Open, Outcome, Sample
from jitney.core.params import Constraint
from jitney.errors import BackendCrashed, BackendFailed
from tests.simulation.marks import Marks
from tests.simulation.seen import Executed, Injected, Tell, Violation
from tests.simulation.workload import POISON
from tests.simulation.world import FaultRates

RESETS_FAILED_MAX = 4
"""In a row; one more and the engine would rightly give up."""

STALL_S = 3.0
BREAK_S = 0.01


class VirtualClock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self._now = 1000.0

    def now(self) -> float:
        """The present moment."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0.0, seconds
        self._now += seconds


class FaultyBackend:
    """The fake backend on a bad day. Implements `jitney.core.backend.Backend`."""

    def __init__(
        self,
        inner: FakeBackend,
        rates: FaultRates,
        random: Random,
        clock: VirtualClock,
        tell: Tell,
        marks: Marks,
    ) -> None:
        self._inner = inner
        self.rates = rates
        self._random = random
        self._clock = clock
        self._tell = tell
        self._marks = marks
        self._prompt_counts: dict[int, int] = {}
        self._is_down = False
        self._resets_failed = 0
        self.is_beyond_hope = False

    @property
    def traits(self) -> Traits:
        """Those of the fake backend."""
        return self._inner.traits

    @property
    def vocabulary(self) -> Vocabulary:
        """That of the fake backend."""
        return self._inner.vocabulary

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch, or not."""
        if self._is_down:
            raise Violation("isolation", f"batch {batch.number} was sent to a backend in ruins")
        for operation in batch.operations:
            if isinstance(operation, Open):
                self._prompt_counts[operation.slot] = operation.sampling.prompt_count
        if self._is_poisoned(batch):
            self._break("poison", batch)
        if self._happens(self.rates.crash):
            self._break("crash", batch)
        if self._happens(self.rates.fail / 2):
            self._break("fail", batch)
        outcome = self._run(batch)
        if self._happens(self.rates.fail / 2):
            self._break("fail", batch)
        return self._spoil(batch, outcome)

    def reset(self) -> None:
        """Empty every slot; may fail a few times, or for ever once it is beyond hope."""
        may_fail = self._resets_failed < RESETS_FAILED_MAX and self._happens(self.rates.reset)
        if self.is_beyond_hope or may_fail:
            self._resets_failed += 1
            self._marks.add("backend restart failed")
            raise BackendCrashed("the machine has no memory to start the backend.")
        self._inner.reset()
        self._prompt_counts.clear()
        self._is_down = False
        self._resets_failed = 0
        self._marks.add("backend restarted")

    def check(self) -> None:
        """A sign of life, unless it died while nothing ran."""
        if self._happens(self.rates.crash):
            self._is_down = True
            self._marks.add("lost while idle")
            raise BackendCrashed("the backend died while nothing ran.")

    def encode(self, text: str, *, special: bool) -> list[int]:
        """As the fake backend does."""
        return self._inner.encode(text, special=special)

    def prepare(self, constraint: Constraint) -> None:
        """As the fake backend does."""
        self._inner.prepare(constraint)

    def close(self) -> None:
        """As the fake backend does."""
        self._inner.close()

    def _run(self, batch: Batch) -> Outcome:
        try:
            outcome = self._inner.execute(batch)
        except BackendFailed as error:
            raise Violation(
                "capacity", f"the backend refused batch {batch.number}: {error}"
            ) from error
        self._tell(Executed(batch, self._inner))
        return outcome

    def _spoil(self, batch: Batch, outcome: Outcome) -> Outcome:
        if self._happens(self.rates.stall):
            self._tell(Injected("stall", batch))
            outcome = replace(outcome, seconds=outcome.seconds + STALL_S)
        self._clock.advance(outcome.seconds)
        if self._happens(self.rates.entry):
            at = self._random.randrange(len(batch.entries))
            self._tell(Injected("entry", batch, batch.entries[at].slot))
            samples = list(outcome.samples)
            samples[at] = Sample(fault="the logits are not numbers.")
            outcome = replace(outcome, samples=tuple(samples))
        if self._happens(self.rates.count):
            self._tell(Injected("count", batch))
            self._is_down = True
            outcome = replace(outcome, samples=outcome.samples[:-1])
        return outcome

    def _break(self, kind: str, batch: Batch) -> None:
        self._tell(Injected(kind, batch))
        self._is_down = True
        self._clock.advance(BREAK_S)
        if kind == "fail":
            raise BackendFailed("the forward pass failed.")
        raise BackendCrashed("the backend died.", signal=11)

    def _is_poisoned(self, batch: Batch) -> bool:
        return any(
            token == POISON and entry.start + offset < self._prompt_counts[entry.slot]
            for entry in batch.entries
            if POISON in entry.tokens
            for offset, token in enumerate(entry.tokens)
        )

    def _happens(self, chance: float) -> bool:
        return chance > 0.0 and self._random.random() < chance
