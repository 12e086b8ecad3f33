"""Which backend runs a model where nobody named one: `select`, and its reason in words.

Pure: what works here, what the file says and what a measurement found are handed in. Kinds come in
the order in which they are preferred. Called by `loading`, at start-up and for `jitney backends`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from jitney.backends.kind import Kind, Library
from jitney.backends.trials.measure import speed_of
from jitney.backends.trials.remembered import TrialResults
from jitney.backends.trials.trial_process import TrialResult
from jitney.config import Settings
from jitney.errors import ConfigError, MissingDependency

FEW_SEQUENCES = 8
"""With more sequences than this the preferred backend is faster wherever it was measured; with
fewer it depends on the machine and on the compiler."""

_DEFAULTS = {each.name: each.default for each in fields(Settings)}


@dataclass(frozen=True, slots=True)
class Selection:
    """A backend, and why this one."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class BackendState:
    """A backend as it is on this machine, and what is against it."""

    kind: Kind
    library: Library | None
    """None where it is not installed."""
    failure: str | None = None
    """Why it does not work on this machine; None when it was seen to."""
    refusal: str | None = None
    """Why it cannot run this model; None when it can."""

    @property
    def is_able(self) -> bool:
        """Whether it runs the model on this machine."""
        return self.obstacle is None

    @property
    def obstacle(self) -> str | None:
        """Why it does not run the model, as a clause."""
        if self.refusal is not None:
            return f"{self.kind.title} does not run this model: {self.refusal.rstrip('.')}"
        if self.library is None:
            return f"{self.kind.title} is not installed"
        if self.failure is not None:
            return f"{self.kind.title} does not work here: {self.failure}"
        return None


def select(settings: Settings, candidates: Sequence[BackendState]) -> Selection | None:
    """The backend for these settings; None where several would do and the fastest is wanted.

    Raises MissingDependency when nothing that is installed can run the model.
    """
    knowing = [each for each in candidates if each.refusal is None]
    for each in knowing:
        for setting, reason in each.kind.only.items():
            if is_given(settings, setting):
                refuse_unusable(each.kind.name, each.failure, given=setting)
                return Selection(each.kind.name, f"{setting} is given, and {reason}")
    able = [each for each in knowing if each.is_able]
    if not able:
        raise MissingDependency(_nothing(candidates, knowing))
    if len(able) == 1:
        return Selection(able[0].kind.name, _reason_alone(able[0], candidates))
    if settings.max_num_seqs <= FEW_SEQUENCES:
        return None
    return Selection(
        able[0].kind.name,
        f"it knows the model and is the faster one with more than {FEW_SEQUENCES} sequences",
    )


def is_given(settings: Settings, name: str) -> bool:
    """Whether a setting is another than by default."""
    return bool(getattr(settings, name) != _DEFAULTS[name])


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


def fastest(trials: TrialResults, sequences: int) -> Selection:
    """The backend whose trial was the fastest, with all figures in the reason.

    One that failed loses; between equals, and where all failed, the preferred one is taken.
    """
    ranked = sorted(trials, key=lambda name: -speed_of(trials[name]))
    figures = [_figure(name, trials[name], is_first=not place) for place, name in enumerate(ranked)]
    noun = "sequence" if sequences == 1 else "sequences"
    reason = f"{sequences} {noun}: {', '.join(figures)}; measured on this machine"
    return Selection(ranked[0], reason)


def _reason_alone(chosen: BackendState, candidates: Sequence[BackendState]) -> str:
    """Why the only one that is able is taken: what is against those before it, or after it."""
    place = candidates.index(chosen)
    preferred = [each.obstacle or "" for each in candidates[:place]]
    others = [each.obstacle or "" for each in candidates[place + 1 :]]
    return ", and ".join(preferred or ["it knows the model", *others])


def _nothing(candidates: Sequence[BackendState], knowing: Sequence[BackendState]) -> str:
    """Why no backend can run the model, and what to do."""
    refusing_first = sorted(candidates, key=lambda each: each.refusal is None)
    obstacles = ", and ".join(each.obstacle or "" for each in refusing_first)
    # The least preferred one runs what no other does.
    advice = [each.kind.instead for each in knowing if each.kind.instead][-1:]
    return f"nothing here can run the model: {'; '.join([obstacles, *advice])}."


def _figure(name: str, trial: TrialResult, *, is_first: bool) -> str:
    speed = speed_of(trial)
    if not speed:
        return f"{name} failed ({trial.failure})"
    number = f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
    return f"{name} {number} tokens/s" if is_first else f"{name} {number}"
