"""Whether a backend works on this machine: seen in a child process, and remembered.

The child is `selftest_run`. Native code that crashes, refuses or computes wrongly is found there
and not by the first caller. What failures mean is for the backend's `kind` to say. Called at
start-up, from any thread.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends.trials.remembered import Trial
from jitney.backends.trials.trial_process import TrialResult, ask
from jitney.version import version

TRY_S_MAX = 120.0
METHOD = 1
"""Part of what an answer is remembered by; another way to try needs another number."""


def try_backend(
    name: str, values: Mapping[str, Any], distributions: tuple[str, ...], cache: Path
) -> TrialResult:
    """Whether the backend works here with these values, from memory or by trial."""
    trial = Trial(
        cache=cache,
        names=(name,),
        facts=["selftest", METHOD, version(), sorted(values.items())],
        distributions=distributions,
        keeps=lambda answers: answers[name].would_repeat,
        # Not that of measurements, which may take long.
        lock="selftest.lock",
    )
    given = {"backend": name, "numbers": dict(values)}
    child = "jitney.backends.trials.selftest_run"
    return trial.results(lambda: {name: ask(child, given, TRY_S_MAX)})[name]
