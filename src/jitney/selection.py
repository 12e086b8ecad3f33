"""Which backend runs a model where nobody named one: `select`, and its reason in words.

Pure: what is installed, what the file says and what a measurement found are handed in. Called by
`loading` at start-up and by `jitney backends`.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jitney.config import Settings
from jitney.errors import MissingDependency

FEW_SEQUENCES = 8
"""With more sequences than this OpenVINO is faster wherever it was measured; with fewer it depends
on the machine and on the compiler that llama.cpp met."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A backend, and why this one."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the choice depends on, besides the settings."""

    installed: frozenset[str]
    """Names of the backends whose libraries are there."""
    openvino_refusal: str | None
    """Why OpenVINO cannot run this model; None when it can."""
    is_folder: bool
    """Whether the model is an exported folder and not a GGUF."""


def select(settings: Settings, facts: Facts, measure: Callable[[], Selection]) -> Selection:
    """The backend for these settings; `measure` is called only where both would do.

    Raises MissingDependency when nothing that is installed can run the model.
    """
    if settings.backend != "auto":
        return Selection(settings.backend, "it was asked for")
    if facts.is_folder:
        return Selection("openvino", "the model is a folder made for it")
    if settings.gpu_layers != 0:
        return Selection("llamacpp", "gpu_layers is given, and only llama.cpp puts layers on a GPU")
    has_openvino, has_llamacpp = (name in facts.installed for name in ("openvino", "llamacpp"))
    if facts.openvino_refusal is not None:
        if has_llamacpp:
            return Selection("llamacpp", f"OpenVINO does not run this model: {_lowered(facts)}")
        raise MissingDependency(
            f"OpenVINO does not run this model ({_lowered(facts)}), and llama-cpp-python is not "
            "installed: install jitney with the extra `llama`, or run `make llama`."
        )
    if not has_openvino and not has_llamacpp:
        raise MissingDependency(
            "no backend is installed: install jitney with the extra `openvino` or `llama`."
        )
    if not has_openvino:
        return Selection("llamacpp", "OpenVINO is not installed")
    if not has_llamacpp:
        return Selection("openvino", "it knows the model, and llama-cpp-python is not installed")
    if settings.max_num_seqs > FEW_SEQUENCES:
        return Selection(
            "openvino",
            f"it knows the model and is the faster one with more than {FEW_SEQUENCES} sequences",
        )
    return measure()


def _lowered(facts: Facts) -> str:
    return (facts.openvino_refusal or "").rstrip(".")
