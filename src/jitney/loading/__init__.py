"""From settings to a loaded backend: which one, the model made ready for it, and its numbers.

Called by `compose` once per `LLM` or server, and by the command line, on the caller's thread. Each
backend has a module here that knows what it is to be told; heavy libraries are imported when a
backend that needs them was chosen.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from jitney import backends
from jitney.backends.llamacpp import usable as llamacpp_usable
from jitney.backends.openvino import families
from jitney.backends.openvino import usable as openvino_usable
from jitney.config import Settings
from jitney.core.backend import Backend
from jitney.loading import fake, llamacpp, openvino, trials
from jitney.loading.common import Values, source_of
from jitney.loading.hub_names import foreseen, hub_module, located
from jitney.loading.selection import Facts, Selection, refuse_unusable, select
from jitney.models import embedded, marks
from jitney.models.gguf import read_header

__all__ = [
    "CONVERSIONS",
    "backend_failure",
    "foreseen",
    "foreseen_backend",
    "hub_module",
    "installed_backends",
    "library_version",
    "load_backend",
    "located",
    "openvino_numbers",
    "ready_model",
    "select_backend",
]


CONVERSIONS = (*openvino.KINDS, *llamacpp.KINDS)
"""Kinds of converted models that are read; others are left from an earlier jitney."""


def load_backend(settings: Settings) -> Backend:
    """The backend of these settings, with its model loaded. Raises a SetupError."""
    name = select_backend(settings).name
    values = _values(name, settings)
    _note_use(values, settings)
    if settings.backend_process:
        return backends.load_process(name, values)
    if name == "llamacpp":
        model = Path(str(values["model"]))
        values["extra_kernels"] = llamacpp.can_use_extra_kernels(model, settings)
    return backends.load(name, values)


def select_backend(
    settings: Settings, progress: embedded.Progress = lambda done, total: None
) -> Selection:
    """The backend for these settings, and why.

    Where speed is to decide and was not measured yet, the model is fetched, made ready for both
    backends and measured.
    """
    return _selected(settings) or trials.measured(settings, progress)


def foreseen_backend(settings: Settings) -> Selection | None:
    """As `select_backend`, without measuring: None where that would have to be done first.

    Reads headers, tries what was not tried yet, and remembers that; fetches and converts nothing.
    """
    selection = _selected(settings)
    if selection is not None:
        return selection
    source = settings.model or embedded.path_in(settings.cache_dir)
    if settings.model is None and not embedded.is_there(settings.cache_dir):
        return None
    return trials.recalled(source, settings)


def installed_backends() -> frozenset[str]:
    """The backends whose libraries are there; whether they work is not tried."""
    kinds = {"openvino": openvino_usable, "llamacpp": llamacpp_usable}
    return frozenset(name for name, kind in kinds.items() if kind.is_installed())


def backend_failure(name: str, settings: Settings) -> str | None:
    """Why an installed backend does not work on this machine, as a clause; None when it does.

    Found by trying, in a child process, and remembered.
    """
    kinds = {"openvino": openvino, "llamacpp": llamacpp}
    return kinds[name].failure(settings) if name in kinds else None


def library_version(backend: str) -> str | None:
    """The version of the backend's library; None where it is not known."""
    return openvino_usable.version() if backend == "openvino" else llamacpp_usable.version()


def openvino_numbers(settings: Settings) -> str:
    """What OpenVINO would compute with, in words: the choices that `auto` amounts to."""
    return openvino.numbers_text(settings)


def ready_model(settings: Settings, progress: embedded.Progress = lambda done, total: None) -> Path:
    """Where the model is as its backend reads it; fetched and converted first if need be."""
    name = select_backend(settings, progress).name
    source = source_of(settings, progress)
    kinds = {"openvino": openvino, "llamacpp": llamacpp}
    return kinds[name].ready(source, settings) if name in kinds else source


def _selected(settings: Settings) -> Selection | None:
    installed = installed_backends()
    if settings.backend != "auto":
        # A mistake in a setting is told before anything is tried.
        checks = {"fake": fake.check, "llamacpp": llamacpp.check, "openvino": openvino.check}
        checks[settings.backend](settings)
        if settings.backend in installed:
            refuse_unusable(settings.backend, backend_failure(settings.backend, settings))
        return Selection(settings.backend, "it was asked for")
    model = settings.model
    is_folder = model is not None and families.is_exported(model)
    refusal = None
    if model is not None and not is_folder:
        refusal = families.refusal(read_header(model), settings.max_model_len)
    failures = {name: backend_failure(name, settings) for name in sorted(installed)}
    return select(settings, Facts(failures, refusal, is_folder))


def _values(name: str, settings: Settings) -> Values:
    """What the backend of this name is told."""
    kinds: Mapping[str, Callable[[Settings], Values]] = {
        "fake": fake.values,
        "llamacpp": llamacpp.values,
        "openvino": openvino.values,
    }
    return kinds[name](settings)


def _note_use(values: Values, settings: Settings) -> None:
    """For `jitney models`: both the model as it was published and what was made of it are used."""
    if "model" not in values:
        return
    marks.note_use(settings.cache_dir, settings.model or embedded.path_in(settings.cache_dir))
    model = Path(str(values["model"]))
    if model.is_relative_to(settings.cache_dir):
        marks.note_use(settings.cache_dir, model if model.is_dir() else model.parent)
