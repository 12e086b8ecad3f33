"""From settings to a loaded backend: finds the model, chooses the backend, and finds its values.

Called by `compose` once per `LLM` or server, and by the command line, on the caller's thread. Code
for one backend belongs into its `kind.py`, not here.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: a value of any setting

from jitney.backends.kind import Kind, Values
from jitney.backends.kinds import all_kinds, kind_of, load, load_process
from jitney.backends.trials.trial import Payload, payload_of
from jitney.backends.trials.trial_process import NO_END, TrialResult
from jitney.config import Settings
from jitney.config.settings import GPU_LAYERS_ALL
from jitney.core.backend import Backend
from jitney.errors import ConfigError, MissingDependency, ModelError, SetupError
from jitney.loading.model_source import source_if_there, source_of
from jitney.loading.selection import (
    BackendState,
    Selection,
    able_among,
    fastest,
    is_given,
    missing,
    refuse_unusable,
    select,
    speed_trial,
    trial_sequences,
)
from jitney.loading.stored import place_of
from jitney.models import notes
from jitney.models.embedded import Progress

_log = logging.getLogger("jitney")


def load_backend(settings: Settings) -> Backend:
    """The backend of these settings, with its model loaded. Raises a SetupError."""
    kind = kind_of(select_backend(settings).name)
    source = source_of(settings) if kind.takes_model else None
    values = values_of(kind, settings, source)
    if settings.gpu_layers == GPU_LAYERS_ALL and not values.get("gpu_layers"):
        _log.warning(
            "gpu_layers is %d, as many as there can be, and none are on a GPU: %s runs on the CPU",
            GPU_LAYERS_ALL,
            kind.title,
        )
    if source is not None:
        _note_use(source, Path(str(values["model"])), settings.cache_dir)
    place = place_of(kind, settings, values)
    build = load_process if settings.backend_process else load
    backend = build(kind.name, values, place)
    if place is not None and not backend.traits.can_store:
        _log.warning(
            "No prefixes are stored in prefix_cache_dir: layers of this model keep a recurrent "
            "state, or see a window only"
        )
    return backend


def ready_model(settings: Settings, progress: Progress = lambda done, total: None) -> Path:
    """The path that the backend reads; fetches and converts the model first if necessary."""
    kind = kind_of(select_backend(settings, progress).name)
    source = source_of(settings, progress)
    check_accepted(kind, settings, source)
    return kind.ready(source, settings)


def select_backend(settings: Settings, progress: Progress = lambda done, total: None) -> Selection:
    """The backend for these settings, and the reason.

    Where the speed decides and was not measured yet, this fetches the model, makes it ready for
    every backend and measures them.
    """
    selection = select_backend_if_known(settings)
    return selection or _select_fastest(source_of(settings, progress), settings)


def select_backend_if_known(
    settings: Settings, states: Sequence[BackendState] = ()
) -> Selection | None:
    """Like `select_backend`, but None where the speed must be measured first.

    Without the states of all backends, they are found. Reads headers. Tries each backend once and
    remembers the result. Fetches and converts nothing.
    """
    if settings.backend == "auto":
        found = [each for each in states if each.kind.is_automatic()]
        candidates = found or _candidates(settings)
        try:
            selection = select(settings, candidates)
        except MissingDependency as error:
            raise MissingDependency(f"{error}{_by_name(settings)}") from None
        source = source_if_there(settings)
        if selection is not None or source is None:
            return selection
        results = speed_trial(_able(candidates), source, settings).recall()
        return None if results is None else fastest(results, trial_sequences(settings.max_num_seqs))
    kind = kind_of(settings.backend)
    # A wrong setting is an error before anything is tried.
    check_settings(kind, settings)
    if kind.library() is not None:
        refuse_unusable(kind.name, kind.failure(settings))
    return Selection(kind.name, "it was asked for")


def backend_state(kind: Kind, settings: Settings) -> BackendState:
    """The state of a backend on this machine, for the model of these settings. Raises ModelError.

    A child process tries whether it works, once; the result is remembered.
    """
    model, library = settings.model, kind.library()
    # The file is read first: nothing is tried for a file that is not a model.
    refusal = None if model is None else kind.refusal(model, settings.max_model_len)
    while (refused := kind.refused_setting(settings)) is not None:
        refusal = refusal or kind.value_refusal(settings)
        usual: dict[str, Any] = {refused: "auto"}
        settings = replace(settings, **usual)
    failure = None if library is None else kind.failure(settings)
    return BackendState(kind, library, failure, refusal)


def state_with_needs(kind: Kind, settings: Settings) -> BackendState:
    """The same, with what the library says of a named model, and the memory that it takes."""
    found, model = backend_state(kind, settings), settings.model
    if model is None or found.refusal is not None:
        return found
    if (refusal := kind.unknown(model)) is not None:
        return replace(found, refusal=refusal)
    return _with_needs(found, settings)


def _with_needs(found: BackendState, settings: Settings) -> BackendState:
    """The same, with the memory that the model takes."""
    if settings.model is None or found.refusal is not None:
        return found
    try:
        return replace(found, needs=found.kind.needs(settings.model, settings))
    except SetupError as error:
        return replace(found, no_room=str(error).rstrip("."))


def missing_backend(settings: Settings) -> Kind | None:
    """What has to be added before these settings can run; None where nothing has, or can be."""
    if settings.backend == "auto":
        return missing(settings, _candidates(settings))
    kind = kind_of(settings.backend)
    return kind if kind.add is not None and kind.library() is None else None


def backend_failure(name: str, settings: Settings) -> str | None:
    """Why a backend does not work on this machine, as a clause; None when it does."""
    kind = kind_of(name)
    if kind.library() is None:
        return f"it is not installed: {kind.advice}"
    return kind.failure(settings)


def check_settings(kind: Kind, settings: Settings) -> None:
    """Raise ConfigError for settings that the backend cannot serve with any model."""
    owners: dict[str, list[str]] = {}
    for each in all_kinds():
        for setting in each.own_settings:
            if setting != each.refused_setting(settings):
                owners.setdefault(setting, []).append(each.name)
    for setting, names in owners.items():
        if kind.name not in names and is_given(settings, setting):
            has = "does not have it"
            if setting in kind.own_values:
                has = f"has only {', '.join(kind.own_values[setting])} of it"
            raise ConfigError(
                f"{setting} is given, and the {kind.name} backend {has}; leave it out, or use the "
                f"{' or '.join(names)} backend where it works."
            )
    kind.check(settings)


def check_accepted(kind: Kind, settings: Settings, source: Path) -> None:
    """Raise ModelError where the backend refuses a published model."""
    length = settings.max_model_len
    reason = kind.refusal(source, length)
    if reason is None:
        return
    able = [
        each
        for each in all_kinds()
        if each.takes_model and each.name != kind.name and each.refusal(source, length) is None
    ]
    others = [each.title for each in able if each.is_automatic()] or [each.title for each in able]
    advice = f"use the {' or '.join(others)} backend" if others else "take another model"
    raise ModelError(f"{source} cannot be run by {kind.title}: {reason.rstrip('.')}; {advice}.")


def values_of(kind: Kind, settings: Settings, source: Path | None) -> Values:
    """The values of the backend's settings, with the model made ready. Raises a SetupError."""
    check_settings(kind, settings)
    if source is not None:
        check_accepted(kind, settings, source)
    return kind.values(settings, source)


def _candidates(settings: Settings) -> list[BackendState]:
    found = [backend_state(kind, settings) for kind in all_kinds() if kind.is_automatic()]
    is_choice = settings.model is not None and sum(each.is_able for each in found) > 1
    return [_with_needs(each, settings) for each in found] if is_choice else found


def _by_name(settings: Settings) -> str:
    """A sentence about the backends that run the model only where the user names them."""
    model = settings.model
    names = [
        each.name
        for each in all_kinds()
        if each.takes_model and not each.is_automatic() and model is not None
        if each.refusal(model, settings.max_model_len) is None
        if each.refused_setting(settings) is None
    ]
    return "".join(f" It runs with `--backend {name}`, where that is installed." for name in names)


def _able(candidates: list[BackendState]) -> list[Kind]:
    return [each.kind for each in able_among(candidates)]


def _select_fastest(source: Path, settings: Settings) -> Selection:
    """The backend that runs the model fastest here: measured once, and remembered."""
    able = _able(_candidates(settings))
    # Before the trial: making a model ready may take the same lock.
    payloads = {kind.name: _speed_payload(kind, source, settings) for kind in able}
    results = speed_trial(able, source, settings).results(payloads)
    # Where all failed, loading one reports the error.
    if any(each.speed for each in results.values()):
        for name, each in results.items():
            if each.failure is not None:
                _log.warning("The %s backend could not be measured: %s", name, each.failure)
    return fastest(results, trial_sequences(settings.max_num_seqs))


def _speed_payload(kind: Kind, source: Path, settings: Settings) -> Payload | TrialResult:
    """What a child is to measure, or why there is nothing to measure."""
    try:
        values = values_of(kind, settings, source)
    except SetupError as error:
        return TrialResult(failure=str(error).rstrip("."), status=NO_END)
    return payload_of(kind.name, values, sequences=trial_sequences(settings.max_num_seqs))


def _note_use(source: Path, model: Path, cache: Path) -> None:
    """Note for `jitney models` that the published model and the converted one are in use."""
    notes.note_use(cache, source)
    if model.is_relative_to(cache):
        notes.note_use(cache, model if model.is_dir() else model.parent)
