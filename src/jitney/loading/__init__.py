"""From settings to a loaded backend: chooses it, makes the model ready, and finds its values.

Called by `compose` once per `LLM` or server, and by the command line, on the caller's thread. Code
for one backend belongs into its `kind.py`, not here.
"""

from pathlib import Path

from jitney.backends.kind import Kind
from jitney.backends.kinds import all_kinds, kind_of, load_process
from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.loading.model_source import source_of
from jitney.loading.selection import BackendState, Selection, refuse_unusable, select
from jitney.loading.speed import SpeedTrial
from jitney.loading.values import accepted_source, check_settings, values_of
from jitney.models import embedded, notes


def load_backend(settings: Settings) -> Backend:
    """The backend of these settings, with its model loaded. Raises a SetupError."""
    kind = kind_of(select_backend(settings).name)
    values = values_of(kind, settings)
    if kind.takes_model:
        _note_use(Path(str(values["model"])), settings)
    if settings.backend_process:
        return load_process(kind.name, values)
    return kind.load(kind.safe_values(values, settings))


def select_backend(
    settings: Settings, progress: embedded.Progress = lambda done, total: None
) -> Selection:
    """The backend for these settings, and the reason.

    Where the speed decides and was not measured yet, this fetches the model, makes it ready for
    every backend and measures them.
    """
    candidates = _candidates(settings)
    selection = _selected(settings, candidates)
    if selection is not None:
        return selection
    return _speed_trial(source_of(settings, progress), settings, candidates).measured()


def select_backend_if_known(settings: Settings) -> Selection | None:
    """Like `select_backend`, but None where the speed must be measured first.

    Reads headers. Tries each backend once and remembers the result. Fetches and converts nothing.
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
    """The state of a backend on this machine, for the model of these settings. Raises ModelError.

    A child process tries whether it works, once; the result is remembered.
    """
    model, library = settings.model, kind.library()
    # The file is read first: nothing is tried for a file that is not a model.
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
    """The path that the backend reads; fetches and converts the model first if necessary."""
    kind = kind_of(select_backend(settings, progress).name)
    return kind.ready(accepted_source(kind, settings, progress), settings)


def _candidates(settings: Settings) -> list[BackendState]:
    """The backends to choose from; none where the user named one."""
    if settings.backend != "auto":
        return []
    return [backend_state(kind, settings) for kind in all_kinds() if kind.is_automatic]


def _selected(settings: Settings, candidates: list[BackendState]) -> Selection | None:
    if settings.backend == "auto":
        return select(settings, candidates)
    kind = kind_of(settings.backend)
    # A wrong setting is an error before anything is tried.
    check_settings(kind, settings)
    if kind.library() is not None:
        refuse_unusable(kind.name, kind.failure(settings))
    return Selection(kind.name, "it was asked for")


def _speed_trial(source: Path, settings: Settings, candidates: list[BackendState]) -> SpeedTrial:
    return SpeedTrial([each.kind for each in candidates if each.is_able], source, settings)


def _note_use(model: Path, settings: Settings) -> None:
    """Note for `jitney models` that the published model and the converted one are in use."""
    cache = settings.cache_dir
    notes.note_use(cache, settings.model or embedded.path_in(cache))
    if model.is_relative_to(cache):
        notes.note_use(cache, model if model.is_dir() else model.parent)
