"""Chooses the backend for a model where the user named none: `select`, with the reason in words.

The caller passes in what works here, what the file says and what was measured. Kinds come in the
order of preference. Called by `loading`, at start-up and for `jitney backends`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from jitney.backends.kind import Kind, Library, Needs, threads_of
from jitney.backends.trials.trial import Trial, TrialResults
from jitney.backends.trials.trial_process import EXIT_REFUSED, TrialResult
from jitney.config import Settings
from jitney.config.settings import GPU_LAYERS_ALL
from jitney.errors import ConfigError, MissingDependency
from jitney.models.files import Stamp

FEW_SEQUENCES = 8
"""With more sequences than this, the preferred backend was faster in every measurement. With fewer,
the result depends on the machine and on the compiler."""

_TAKEN_BY_ALL = {"gpu_layers": GPU_LAYERS_ALL}
"""Values that every backend takes, though only one of them has the setting."""

_DEFAULTS = {each.name: each.default for each in fields(Settings)}


@dataclass(frozen=True, slots=True)
class Selection:
    """The chosen backend, and the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class BackendState:
    """A backend on this machine: its library, and why it cannot be used."""

    kind: Kind
    library: Library | None
    """None where it is not installed."""
    failure: str | None = None
    """Why it does not work on this machine; None when it does."""
    refusal: str | None = None
    """Why it cannot run this model, or takes no such setting; None when it can."""
    needs: Needs | None = None
    """The memory that the model takes, where that was asked for and is known."""
    no_room: str | None = None
    """Why this machine could not hold the model now."""

    @property
    def is_able(self) -> bool:
        """Whether it runs the model on this machine."""
        return self.library is not None and self.refusal is None and self.failure is None

    @property
    def obstacle(self) -> str | None:
        """Why it does not run the model, or could not hold it now, as a clause."""
        if self.refusal is not None:
            return f"{self.kind.title} does not run this model: {self.refusal.rstrip('.')}"
        if self.library is None:
            return f"{self.kind.title} is not installed"
        if self.failure is not None:
            return f"{self.kind.title} does not work here: {self.failure}"
        if self.no_room is not None:
            return f"{self.kind.title} has no room for this model: {self.no_room}"
        return None


def select(settings: Settings, candidates: Sequence[BackendState]) -> Selection | None:
    """The backend for these settings; None where the speed must decide between several.

    Raises MissingDependency when no installed backend can run the model.
    """
    accepting = [each for each in candidates if each.refusal is None]
    for each in accepting:
        for setting, reason in each.kind.own_settings.items():
            if is_given(settings, setting):
                refuse_unusable(each.kind.name, each.failure, setting=setting)
                return Selection(each.kind.name, f"{setting} is given, and {reason}")
    able = able_among(accepting)
    if not able:
        raise MissingDependency(_why_none(candidates, accepting))
    if len(able) == 1:
        return Selection(able[0].kind.name, _reason_alone(able[0], candidates))
    if settings.max_num_seqs <= FEW_SEQUENCES or settings.gpu_layers == GPU_LAYERS_ALL:
        return None
    return Selection(
        able[0].kind.name,
        f"it knows the model and is the faster one with more than {FEW_SEQUENCES} sequences",
    )


def able_among(candidates: Sequence[BackendState]) -> list[BackendState]:
    """Those that run the model; one that has no room for it is passed over where another has."""
    able = [each for each in candidates if each.is_able]
    return [each for each in able if each.no_room is None] or able


def missing(settings: Settings, candidates: Sequence[BackendState]) -> Kind | None:
    """The backend to add where no installed one can run the model; None where there is none."""
    accepting = [each for each in candidates if each.refusal is None]
    asked = [
        each
        for each in accepting
        if any(is_given(settings, name) for name in each.kind.own_settings)
    ]
    wanted = asked or accepting
    if any(each.is_able for each in wanted):
        return None
    can_be_added = (each.kind for each in wanted if each.library is None and each.kind.add)
    return next(can_be_added, None)


def is_given(settings: Settings, name: str) -> bool:
    """Whether a setting differs from its default, and not every backend takes its value."""
    value = getattr(settings, name)
    return value != _DEFAULTS[name] and (name, value) not in _TAKEN_BY_ALL.items()


def refuse_unusable(name: str, failure: str | None, *, setting: str = "backend") -> None:
    """Raise ConfigError where a setting chose a backend that does not work here."""
    if failure is not None:
        raise ConfigError(
            f"The {name} backend does not work on this machine: {failure}; leave {setting} out, or "
            "see with `jitney backends` what works here."
        )


def trial_sequences(max_num_seqs: int) -> int:
    """How many sequences a trial runs for this setting: the next power of two."""
    return 1 << (min(max_num_seqs, FEW_SEQUENCES) - 1).bit_length()


def speed_trial(kinds: Sequence[Kind], source: Path, settings: Settings) -> Trial:
    """The measurement of one model with these settings. All the kinds can run it."""
    return Trial(
        cache=settings.cache_dir,
        names=tuple(kind.name for kind in kinds),
        facts=[
            ["speed", str(source.resolve()), asdict(Stamp.of(source)), threads_of(settings)],
            [trial_sequences(settings.max_num_seqs), settings.batch_invariant],
            [kind.speed_facts(source, settings) for kind in kinds],
        ],
        distributions=tuple(name for kind in kinds for name in kind.distributions()),
        keeps=is_settled,
        measures=True,
        model=source,
        notice="Measuring which backend is faster here, once",
    )


def is_settled(results: TrialResults) -> bool:
    """Whether one backend has a figure, and the others would fail again.

    A backend may have refused for lack of memory, so that is not final.
    """
    return any(each.speed for each in results.values()) and all(
        each.speed or (each.failure and each.would_repeat and each.status != EXIT_REFUSED)
        for each in results.values()
    )


def fastest(results: TrialResults, sequences: int) -> Selection:
    """The backend with the fastest trial; the reason has all figures.

    A backend that failed loses. Among equals, and where all failed, the preferred one wins.
    """
    ranked = sorted(results, key=lambda name: -results[name].speed)
    figures = [_figure(name, results[name], is_first=not at) for at, name in enumerate(ranked)]
    noun = "sequence" if sequences == 1 else "sequences"
    reason = f"{sequences} {noun}: {', '.join(figures)}; measured on this machine"
    return Selection(ranked[0], reason)


def _reason_alone(chosen: BackendState, candidates: Sequence[BackendState]) -> str:
    """The reason for the only usable backend: why the others cannot be used."""
    place = candidates.index(chosen)
    preferred = [each.obstacle or "" for each in candidates[:place]]
    others = [each.obstacle or "" for each in candidates[place + 1 :]]
    return ", and ".join(preferred or ["it knows the model", *others])


def _why_none(candidates: Sequence[BackendState], accepting: Sequence[BackendState]) -> str:
    """Why no backend can run the model, and what to do."""
    refusing_first = sorted(candidates, key=lambda each: each.refusal is None)
    obstacles = ", and ".join(each.obstacle or "" for each in refusing_first)
    # The last backend runs the most models.
    advice = [each.kind.advice_unusable for each in accepting if each.kind.advice_unusable][-1:]
    return f"Nothing here can run the model: {'; '.join([obstacles, *advice])}."


def _figure(name: str, result: TrialResult, *, is_first: bool) -> str:
    speed = result.speed
    if not speed:
        return f"{name} failed ({result.failure})"
    number = f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
    return f"{name} {number} tokens/s" if is_first else f"{name} {number}"
