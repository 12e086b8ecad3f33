"""Tries in a child process whether a backend works on this machine, and remembers the result.

The child is `selftest_run`. It finds native code that crashes, refuses or computes wrongly, before
a user does. The backend's `kind` explains a failure. Called at start-up, from any thread.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends.trials.remembered import Trial
from jitney.backends.trials.trial_process import TrialResult, ask
from jitney.version import version

TRY_S_MAX = 120.0
METHOD = 1
"""Part of the key of a remembered answer. Another way to try needs another number."""


def try_backend(
    name: str, values: Mapping[str, Any], distributions: tuple[str, ...], cache: Path
) -> TrialResult:
    """Whether the backend works here with these values: remembered, or tried now."""
    trial = Trial(
        cache=cache,
        names=(name,),
        facts=["selftest", METHOD, version(), sorted(values.items())],
        distributions=distributions,
        keeps=lambda answers: answers[name].would_repeat,
    )
    given = {"backend": name, "numbers": dict(values)}
    child = "jitney.backends.trials.selftest_run"
    return trial.results(lambda: {name: ask(child, given, TRY_S_MAX)})[name]
