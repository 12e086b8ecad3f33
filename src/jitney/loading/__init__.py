"""From settings to a loaded backend: which one, the model made ready for it, and its values.

Called by `compose` once per `LLM` or server, and by the command line, on the caller's thread. What
is special about one backend stands in its `kind.py`, not here.
"""

from pathlib import Path

from jitney.backends.kind import Kind
from jitney.backends.kinds import all_kinds, kind_of, load_process
from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.loading.model_source import foreseen, located, source_of, takes_model
from jitney.loading.selection import BackendState, Selection, refuse_unusable, select
from jitney.loading.speed import SpeedTrial
from jitney.loading.values import check_settings, values_of
from jitney.models import embedded, notes

__all__ = [
    "backend_failure",
    "backend_state",
    "foreseen",
    "foreseen_backend",
    "load_backend",
    "located",
    "ready_model",
    "select_backend",
    "takes_model",
]


def load_backend(settings: Settings) -> Backend:
    """The backend of these settings, with its model loaded. Raises a SetupError."""
    kind = kind_of(select_backend(settings).name)
    values = values_of(kind, settings)
    if kind.takes_model:
        _note_use(Path(str(values["model"])), settings)
    if settings.backend_process:
        return load_process(kind.name, values)
    return kind.load(kind.proven(values, settings))


def select_backend(
    settings: Settings, progress: embedded.Progress = lambda done, total: None
) -> Selection:
    """The backend for these settings, and why.

    Where speed is to decide and was not measured yet, the model is fetched, made ready for every
    backend and measured.
    """
    candidates = _candidates(settings)
    selection = _selected(settings, candidates)
    if selection is not None:
        return selection
    return _speed_trial(source_of(settings, progress), settings, candidates).measured()


def foreseen_backend(settings: Settings) -> Selection | None:
    """As `select_backend`, without measuring: None where that would have to be done first.

    Reads headers, tries what was not tried yet, and remembers that; fetches and converts nothing.
    """
    candidates = _candidates(settings)
    selection = _selected(settings, candidates)
    if selection is not None:
        return selection
    if settings.model is None and not embedded.is_there(settings.cache_dir):
        return None
    source = settings.model or embedded.path_in(settings.cache_dir)
    return _speed_trial(source, settings, candidates).recalled()


def backend_state(kind: Kind, settings: Settings) -> BackendState:
    """A backend as it is on this machine, for the model of these settings. Raises ModelError.

    Whether it works is found by trying, in a child process, and remembered.
    """
    model, library = settings.model, kind.library()
    # What the file says comes first: nothing is tried for a file that is no model.
    refusal = None if model is None else kind.refusal(model, settings.max_model_len)
    failure = None if library is None else kind.failure(settings)
    return BackendState(kind, library, failure, refusal)


def backend_failure(name: str, settings: Settings) -> str | None:
    """Why a backend does not work on this machine, as a clause; None when it does."""
    kind = kind_of(name)
    if kind.library() is None:
        return f"it is not installed: {kind.advice}"
    return kind.failure(settings)


def ready_model(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Path:
    """Where the model is as its backend reads it; fetched and converted first if need be."""
    kind = kind_of(select_backend(settings, progress).name)
    return kind.ready(source_of(settings, progress), settings)


def _candidates(settings: Settings) -> list[BackendState]:
    """The backends to choose from; none where one was asked for."""
    if settings.backend != "auto":
        return []
    return [backend_state(kind, settings) for kind in all_kinds() if kind.is_automatic]


def _selected(settings: Settings, candidates: list[BackendState]) -> Selection | None:
    if settings.backend == "auto":
        return select(settings, candidates)
    kind = kind_of(settings.backend)
    # A mistake in a setting is reported before anything is tried.
    check_settings(kind, settings)
    if kind.library() is not None:
        refuse_unusable(kind.name, kind.failure(settings))
    return Selection(kind.name, "it was asked for")


def _speed_trial(source: Path, settings: Settings, candidates: list[BackendState]) -> SpeedTrial:
    return SpeedTrial([each.kind for each in candidates if each.is_able], source, settings)


def _note_use(model: Path, settings: Settings) -> None:
    """For `jitney models`: both the model as it was published and what was made of it are used."""
    cache = settings.cache_dir
    notes.note_use(cache, settings.model or embedded.path_in(cache))
    if model.is_relative_to(cache):
        notes.note_use(cache, model if model.is_dir() else model.parent)
