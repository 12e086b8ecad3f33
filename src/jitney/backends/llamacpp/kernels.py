"""Tries in a child whether llama.cpp's fastest kernels run a model here, and remembers it.

The child is `probe`. An illegal instruction means that a compiler made wrong kernels: then the
model is tried without them. Any other failure of the child is an error about the model. Called at
start-up, from any thread.
"""

import signal
from dataclasses import replace
from pathlib import Path

from jitney.backends.llamacpp import library
from jitney.backends.trials.remembered import Trial, TrialResults
from jitney.backends.trials.trial_process import (
    EXIT_NO_ROOM,
    EXIT_REFUSED,
    NO_END,
    TrialResult,
    ask,
)
from jitney.errors import ModelError
from jitney.models.parts import size_of

START_S_MAX = 120.0
BYTES_PER_S_MIN = 20e6
"""The slowest disk that the time limit allows for."""
SLOW_NOTICE = (
    "This llama.cpp was compiled with an instruction that is illegal on this processor, so its "
    "fastest kernels stay off; compile it again, best with clang 19: "
    '`make llama ARGS="--compile --force"`.'
)
_NAME = "extra_kernels"


def are_usable(model: Path, cache: Path, distributions: tuple[str, ...]) -> bool:
    """Whether the model runs with the fastest kernels; false where it only runs without them.

    Raises ModelError where it does not run at all.
    """
    try:
        status, size = model.stat(), size_of(model)
    except OSError as error:
        raise ModelError(f"{model} cannot be read: {error.strerror}.") from None
    trial = Trial(
        cache=cache,
        names=(_NAME,),
        facts=[[str(model.resolve()), status.st_size, status.st_mtime_ns], library.stamps()],
        distributions=distributions,
        keeps=lambda answers: isinstance(answers[_NAME].found.get(_NAME), bool),
        model=model,
    )
    found = trial.results(lambda: _tried(model, START_S_MAX + size / BYTES_PER_S_MIN))[_NAME]
    if found.failure is not None:
        raise ModelError(_sentence(model, found))
    return bool(found.found[_NAME])


def _tried(model: Path, limit_s: float) -> TrialResults:
    found = TrialResult()
    for is_extra in (True, False):
        given = {"model": str(model), _NAME: is_extra}
        found = ask("jitney.backends.llamacpp.probe", given, limit_s)
        if found.failure is None:
            found = replace(found, found={_NAME: is_extra})
        if found.status != -signal.SIGILL:
            break
    return {_NAME: found}


def _sentence(model: Path, found: TrialResult) -> str:
    if found.status in (EXIT_REFUSED, EXIT_NO_ROOM):
        return f"{found.failure}."
    if found.would_repeat:
        advice = "the file is damaged or its kind of model is not supported"
    elif found.status in (-signal.SIGKILL, NO_END):
        advice = "take a smaller model or free some memory"
    else:
        advice = "the model is probably not the cause: add llama.cpp again with `make llama`"
    return f"{model} cannot be run by llama.cpp: {found.failure}; {advice}."
