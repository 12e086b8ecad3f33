"""Which backend runs a model where nobody named one: `select`, and its reason in words.

Pure: what works here, what the file says and what a measurement found are handed in. Called by
`loading`, at start-up and for `jitney backends`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jitney.backends.llamacpp.usable import ADVICE
from jitney.backends.trials.measure import Trial
from jitney.config import Settings
from jitney.errors import ConfigError, MissingDependency

TITLES = {"openvino": "OpenVINO", "llamacpp": "llama.cpp"}

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

    failures: Mapping[str, str | None]
    """The backends whose libraries are there, and why one does not work here; None when it does."""
    openvino_refusal: str | None
    """Why OpenVINO cannot run this model; None when it can."""
    is_folder: bool
    """Whether the model is an exported folder and not a GGUF."""


def select(settings: Settings, facts: Facts) -> Selection | None:
    """The backend for these settings; None where both would do and the faster one is wanted.

    Raises MissingDependency when nothing that is installed can run the model.
    """
    if settings.gpu_layers != 0 and not facts.is_folder:
        refuse_unusable("llamacpp", facts.failures.get("llamacpp"), given="gpu_layers")
        return Selection("llamacpp", "gpu_layers is given, and only llama.cpp puts layers on a GPU")
    has_openvino, has_llamacpp = (_works(name, facts) for name in ("openvino", "llamacpp"))
    if facts.is_folder:
        if not has_openvino:
            raise MissingDependency(
                f"the model is a folder made for OpenVINO, and {_absence('openvino', facts)}; "
                "take a GGUF file of the model."
            )
        return Selection("openvino", "the model is a folder made for it")
    if facts.openvino_refusal is not None:
        if has_llamacpp:
            return Selection("llamacpp", f"OpenVINO does not run this model: {_lowered(facts)}")
        raise MissingDependency(
            f"OpenVINO does not run this model ({_lowered(facts)}), and "
            f"{_absence('llamacpp', facts)}: {ADVICE}."
        )
    if has_openvino and has_llamacpp:
        return _of_both(settings)
    if has_llamacpp:
        return Selection("llamacpp", _absence("openvino", facts))
    if has_openvino:
        return Selection("openvino", f"it knows the model, and {_absence('llamacpp', facts)}")
    told = f"{_absence('openvino', facts)}, and {_absence('llamacpp', facts)}"
    raise MissingDependency(f"nothing here can run a model: {told}: {ADVICE}.")


def refuse_unusable(name: str, failure: str | None, *, given: str = "backend") -> None:
    """Refuse a backend that a setting asks for and that does not work here. Raises ConfigError."""
    if failure is not None:
        raise ConfigError(
            f"the {name} backend does not work on this machine: {failure}; leave {given} out, or "
            "see with `jitney backends` what works here."
        )


def trial_sequences(max_num_seqs: int) -> int:
    """Sequences of the trial that stands for so many: the next power of two."""
    return 1 << (min(max_num_seqs, FEW_SEQUENCES) - 1).bit_length()


def fastest(trials: Mapping[str, Trial], sequences: int) -> Selection:
    """The backend whose trial was the fastest, with all figures in the reason.

    One that failed loses; where all did, OpenVINO is taken, and loading it will say what is wrong.
    """
    speeds = {name: trial.tokens_per_s or 0.0 for name, trial in trials.items()}
    # Between equals, the one that is faster with more sequences.
    ranked = sorted(speeds, key=lambda name: (-speeds[name], name != "openvino"))
    figures = [_figure(name, trials[name], is_first=not place) for place, name in enumerate(ranked)]
    noun = "sequence" if sequences == 1 else "sequences"
    told = f"{sequences} {noun}: {', '.join(figures)}; measured on this machine"
    return Selection(ranked[0], told)


def _of_both(settings: Settings) -> Selection | None:
    """The choice where both are there and know the model; None where speed is to decide."""
    if settings.flash_attention != "auto":
        return Selection("llamacpp", "flash_attention is given, and only llama.cpp has the choice")
    for name in ("dtype", "kv_cache_dtype"):
        if getattr(settings, name) != "auto":
            return Selection("openvino", f"{name} is given, and only OpenVINO has the choice")
    if settings.max_num_seqs > FEW_SEQUENCES:
        return Selection(
            "openvino",
            f"it knows the model and is the faster one with more than {FEW_SEQUENCES} sequences",
        )
    return None


def _works(name: str, facts: Facts) -> bool:
    return name in facts.failures and facts.failures[name] is None


def _absence(name: str, facts: Facts) -> str:
    """Why a backend is not chosen, as a clause."""
    failure = facts.failures.get(name)
    title = TITLES[name]
    return (
        f"{title} is not installed" if failure is None else f"{title} does not work here: {failure}"
    )


def _figure(name: str, trial: Trial, *, is_first: bool) -> str:
    speed = trial.tokens_per_s
    if speed is None:
        return f"{name} failed ({trial.failure})"
    number = f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
    return f"{name} {number} tokens/s" if is_first else f"{name} {number}"


def _lowered(facts: Facts) -> str:
    return (facts.openvino_refusal or "").rstrip(".")
