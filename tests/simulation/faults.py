"""Faults: a backend that fails, crashes, answers nonsense or dawdles, and a clock that jumps.

`FaultyBackend` stands between the engine and the fake backend and reports what it does. It holds
the engine to the contract, too: after a failure nothing may be sent before a reset, and a batch
that the fake backend refuses by itself is a mistake of the core, never an injected fault.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.backend import Fetch
from jitney.core.backend import Fetched as Found
from jitney.core.batch import Batch, Fault, MemoryOperation, Open, Outcome, Sample, Store
from jitney.errors import BackendCrashed, BackendFailed
from tests.simulation.disk import ORIGIN, DictShelf, files_on
from tests.simulation.marks import Marks
from tests.simulation.seen import Executed, Injected, Read, Tell, Violation
from tests.simulation.workload import POISON, has_curse
from tests.simulation.world import FaultRates

RESETS_FAILED_MAX = 4
"""In a row; one more and the engine would rightly give up."""

LATE_CHANCE = 0.95
"""That an outcome is not there yet, when the engine can do something else meanwhile."""

BOTH_TIMES = 4
"""How much likelier a crash is with two batches in flight, which is rare enough by itself."""

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


class FaultyBackend(FakeBackend):
    """The fake backend on a bad day."""

    def __init__(
        self,
        settings: FakeSettings,
        rates: FaultRates,
        random: Random,
        clock: VirtualClock,
        tell: Tell,
        marks: Marks,
    ) -> None:
        super().__init__(settings)
        self.rates = rates
        self._random = random
        self._clock = clock
        self._tell = tell
        self._marks = marks
        self._prompt_counts: dict[int, int] = {}
        self._is_down = False
        self._resets_failed = 0
        self.is_beyond_hope = False
        self._shelf: DictShelf | None = None
        self._shelf_limit = 0
        self._stored: dict[int, tuple[int, ...]] = {}

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch, or not."""
        if self._is_down:
            raise Violation("isolation", f"batch {batch.number} was sent to a backend in ruins")
        is_cursed = False
        for operation in batch.operations:
            if isinstance(operation, Open):
                self._prompt_counts[operation.slot] = operation.sampling.prompt_count
                is_cursed = is_cursed or has_curse(operation.sampling.logit_bias)
        if is_cursed or self._is_poisoned(batch):
            self._break("poison", batch)
        if self._happens(self.rates.crash):
            self._break("crash", batch)
        if self._happens(self.rates.fail / 2):
            self._break("fail", batch)
        outcome = self._carry_out(batch)
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
        super().reset()
        self._begin_anew()
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

    def use_shelf(self, shelf: DictShelf, limit: int) -> None:
        """From now on prefixes are stored here, also by those that come after this process."""
        self._shelf, self._shelf_limit = shelf, limit
        self._begin_anew()

    def fetch(self, asked: Fetch) -> Found:
        """Look for a prefix; nothing is read by a process that is gone."""
        if self._is_down:
            raise BackendCrashed("the backend is gone.")
        found = super().fetch(asked)
        if found.length:
            self._tell(Read(asked.ticket, self.tokens_under(asked.ticket)))
        return found

    def _operate(self, operations: Sequence[MemoryOperation]) -> None:
        """Each by itself: what a slot holds when it is stored is seen."""
        for operation in operations:
            if isinstance(operation, Store):
                self._stored[operation.slot] = self.tokens_of(operation.slot)
            super()._operate([operation])

    def _begin_anew(self) -> None:
        """A process that starts knows of the disk what it finds there."""
        if self._shelf is not None:
            self.use_prefixes(files_on(self._shelf, ORIGIN, self._shelf_limit, self._clock.now))

    def _carry_out(self, batch: Batch) -> Outcome:
        self._stored.clear()
        try:
            outcome = super().execute(batch)
        except BackendFailed as error:
            raise Violation(
                "capacity", f"the backend refused batch {batch.number}: {error}"
            ) from error
        self._tell(Executed(batch, self, dict(self._stored)))
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
            samples[at] = Sample(fault=Fault("the logits are not numbers."))
            outcome = Outcome.of(outcome.number, samples, outcome.seconds)
        if self._happens(self.rates.count):
            self._tell(Injected("count", batch))
            self._is_down = True
            outcome = replace(outcome, tokens=outcome.tokens[:-1])
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


class QueueingFaultyBackend(FaultyBackend):
    """The same in another process: batches wait there for each other, and so do their outcomes.

    A subclass, because that is what the engine tells the two apart by: it can do more.
    """

    def __init__(self, *parts: Any) -> None:  # Any: those of any FaultyBackend
        super().__init__(*parts)
        self._answers: deque[tuple[Batch, Outcome | BackendFailed | BackendCrashed]] = deque()

    def send(self, batch: Batch) -> None:
        """Take a batch; those behind one that failed are lost with it."""
        if self._answers:
            self._marks.add("two batches in flight")
        self._answers.append((batch, self._answer(batch)))

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The oldest answer, unless it is late, or dies with the one behind it."""
        if not self._answers:
            raise Violation("isolation", "an outcome is awaited of a batch that was not sent")
        if limit_s is not None and self._happens(LATE_CHANCE):
            return None
        are_two = len(self._answers) > 1
        batch, answer = self._answers.popleft()
        if are_two and not self._is_down and self._happens(BOTH_TIMES * self.rates.crash):
            self._marks.add("two batches lost at once")
            self._break("crash", batch)
        if isinstance(answer, Outcome):
            return answer
        if are_two:
            self._marks.add("two batches lost at once")
        raise answer

    def _answer(self, batch: Batch) -> Outcome | BackendFailed | BackendCrashed:
        if self._is_down and self._answers:
            return BackendFailed("a batch before this one failed.")
        try:
            return self.execute(batch)
        except (BackendFailed, BackendCrashed) as error:
            return error

    def check(self) -> None:
        """A sign of life, which would be taken for the answer to a batch under way."""
        if self._answers:
            raise Violation("isolation", "asked for a sign of life while a batch is under way")
        super().check()

    def reset(self) -> None:
        """Empty, as far as it can: nothing is answered any more."""
        self._answers.clear()
        super().reset()
