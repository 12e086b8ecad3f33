"""Tries in a child whether llama.cpp's fastest kernels run a model here, and remembers it.

The child loads the model and computes one answer. An illegal instruction means that a compiler made
wrong kernels: then the model is tried without them. Any other failure of the child is an error
about the model. Called at start-up, from any thread.
"""

import signal
from dataclasses import asdict
from pathlib import Path

from jitney.backends.kind import Values
from jitney.backends.llamacpp import library, prebuilt
from jitney.backends.trials.trial import Trial, payload_of
from jitney.backends.trials.trial_process import EXIT_NO_ROOM, EXIT_REFUSED, NO_END, TrialResult
from jitney.errors import ModelError, NoRoom
from jitney.models.files import Stamp
from jitney.models.notes import NOTICE_BYTES
from jitney.models.parts import size_of

SLOW_NOTICE = (
    "This llama.cpp was compiled with an instruction that is illegal on this processor, so its "
    "fastest kernels stay off; `jitney backends --add llamacpp` adds the prebuilt one, and the "
    "extra `llama` compiles it again, best with clang 19."
)
NOTICE = "Trying whether llama.cpp runs this model here, once"
_NAME = "extra_kernels"


def are_usable(values: Values, cache: Path, distributions: tuple[str, ...]) -> bool:
    """Whether the model runs with the fastest kernels; false where it only runs without them.

    `values` are those of the backend, but for these kernels. Raises ModelError where it does not
    run at all, and NoRoom where memory may be the reason.
    """
    model, found = Path(str(values["model"])), TrialResult()
    names = ("gpu_layers", "flash_attention", "threads", "kv_type")
    tried = {name: values[name] for name in names}
    for is_extra in (True, False):
        trial = Trial(
            cache=cache,
            names=(_NAME,),
            facts=[str(model.resolve()), asdict(Stamp.of(model)), tried, is_extra],
            distributions=distributions,
            keeps=lambda results: results[_NAME].status in (0, -signal.SIGILL),
            model=model,
            notice=NOTICE if size_of(model) > NOTICE_BYTES else "",
        )
        given = {**tried, "model": str(model), _NAME: is_extra, "max_num_batched_tokens": 64}
        payload = payload_of("llamacpp", given)
        found = trial.results({_NAME: payload})[_NAME]
        if found.status != -signal.SIGILL:
            break
    if found.failure is not None:
        is_no_room = found.status in (EXIT_NO_ROOM, NO_END, -signal.SIGKILL)
        raise (NoRoom if is_no_room else ModelError)(_sentence(model, found))
    return is_extra


def unfit(found: TrialResult) -> str | None:
    """What to do where a library for a GPU crashed, as a clause; None for any other end."""
    gpus = library.gpus() if found.status < 0 and found.would_repeat else []
    if not gpus:
        return None
    built, usual = f"this llama.cpp is built for {' and '.join(gpus)}", prebuilt.usual()
    if usual is not None and usual.gpu in gpus:
        return (
            f"{built}, as the usual one is: it does not work with this GPU or its driver, or a "
            f"file is damaged; CMAKE_ARGS=-DGGML_{usual.gpu.upper()}=OFF make llama ARGS=--compile "
            "makes one without it"
        )
    return (
        f"{built}, and probably does not work with this GPU or its driver: `jitney backends --add "
        "llamacpp` adds the usual one"
    )


def _sentence(model: Path, found: TrialResult) -> str:
    if found.status in (EXIT_REFUSED, EXIT_NO_ROOM):
        return f"{found.failure}."
    if found.would_repeat:
        advice = unfit(found) or "the file is damaged or its kind of model is not supported"
    elif found.status in (-signal.SIGKILL, NO_END):
        advice = "take a smaller model or free some memory"
    else:
        advice = (
            "the model is probably not the cause: `jitney backends --add llamacpp` installs "
            "llama.cpp again"
        )
    return f"{model} cannot be run by llama.cpp: {found.failure}; {advice}."
