"""Chooses the fastest backend: measures all of them on this machine, once, and remembers it.

Tests: tests/unit/loading/test_loading_measured.py.
"""

import logging
from pathlib import Path

from jitney.backends.kind import Kind, Values, threads_of
from jitney.backends.trials.measure import METHOD, is_settled, measure, speed_of
from jitney.backends.trials.remembered import Trial, TrialResults
from jitney.backends.trials.trial_process import NO_END, TrialResult
from jitney.config import Settings
from jitney.errors import SetupError
from jitney.loading.selection import Selection, fastest, trial_sequences
from jitney.loading.values import values_of

_log = logging.getLogger("jitney")


class SpeedTrial:
    """The measurement of one model with these settings. All the kinds can run it."""

    def __init__(self, kinds: list[Kind], source: Path, settings: Settings) -> None:
        self._kinds = kinds
        self._settings = settings
        self._sequences = trial_sequences(settings.max_num_seqs)
        status = source.stat()
        self._trial = Trial(
            cache=settings.cache_dir,
            names=tuple(kind.name for kind in kinds),
            facts=[
                ["speed", METHOD, str(source.resolve()), status.st_size, status.st_mtime_ns],
                [threads_of(settings), self._sequences, settings.batch_invariant],
                [kind.speed_facts(source, settings) for kind in kinds],
            ],
            distributions=tuple(name for kind in kinds for name in kind.distributions()),
            keeps=is_settled,
            measures=True,
            model=source,
        )

    def recalled(self) -> Selection | None:
        """The choice of an earlier measurement; None when there was none."""
        found = self._trial.recall()
        return None if found is None else fastest(found, self._sequences)

    def measured(self) -> Selection:
        """The fastest backend, from memory or measured now."""
        return self.recalled() or fastest(self._measure(), self._sequences)

    def _measure(self) -> TrialResults:
        # Before the lock is taken: making a model ready may take the same lock.
        ready = {kind.name: self._ready(kind) for kind in self._kinds}

        def attempt() -> TrialResults:
            if any(isinstance(each, dict) for each in ready.values()):
                _log.warning("Measuring which backend is faster here, once")
            found = {
                name: each
                if isinstance(each, TrialResult)
                else measure(name, each, self._sequences)
                for name, each in ready.items()
            }
            # Where all failed, loading one reports the error.
            if any(map(speed_of, found.values())):
                _warn_of_failures(found)
            return found

        return self._trial.results(attempt)

    def _ready(self, kind: Kind) -> Values | TrialResult:
        """The values for the backend, or why there are none."""
        try:
            return kind.safe_values(values_of(kind, self._settings), self._settings)
        except SetupError as error:
            return TrialResult(failure=str(error).rstrip("."), status=NO_END)


def _warn_of_failures(found: TrialResults) -> None:
    for name, each in found.items():
        if each.failure is not None:
            _log.warning("The %s backend could not be measured: %s", name, each.failure)
