"""Whatever runs the model: backends by name, each loaded only when it is asked for.

`load` builds one in this process, `load_process` in a process of its own, so that a crash of
native code ends that process and not this one.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any  # Any: settings are plain values until their dataclass has checked them

from jitney.backends.process.client import BackendSpec, ProcessBackend
from jitney.core import limits
from jitney.core.backend import Backend
from jitney.errors import ConfigError, MissingDependency

NAMES = ("fake", "llamacpp", "openvino")


def load(name: str, settings: Mapping[str, Any]) -> Backend:
    """Build a backend in this process. Raises a SetupError that says what to mend."""
    loaders: Mapping[str, Callable[[Mapping[str, Any]], Backend]] = {
        "fake": _load_fake,
        "llamacpp": _load_llamacpp,
        "openvino": _load_openvino,
    }
    if name not in loaders:
        raise ConfigError(f"there is no backend {name!r}; there are {', '.join(NAMES)}.")
    return loaders[name](settings)


def load_process(
    name: str,
    settings: Mapping[str, Any],
    *,
    start_s_max: float = 300.0,
    batch_s_max: float = limits.BATCH_S_MAX,
) -> ProcessBackend:
    """Build a backend in a process of its own; it ends when this process does."""
    if name not in NAMES:
        raise ConfigError(f"there is no backend {name!r}; there are {', '.join(NAMES)}.")
    spec = BackendSpec(
        name=name, settings=dict(settings), start_s_max=start_s_max, batch_s_max=batch_s_max
    )
    return ProcessBackend(spec)


def _load_fake(settings: Mapping[str, Any]) -> Backend:
    from jitney.backends.fake.backend import FakeBackend, FakeSettings

    _check_names("fake", settings, FakeSettings)
    return FakeBackend(FakeSettings(**settings))


def _load_llamacpp(settings: Mapping[str, Any]) -> Backend:
    try:
        from jitney.backends.llamacpp.backend import LlamaCppBackend, LlamaCppSettings
    except ImportError as error:
        raise missing("llamacpp", error) from error
    except (OSError, RuntimeError) as error:
        raise MissingDependency(
            f"llama.cpp is installed and cannot be loaded ({error}): `make llama` makes it anew."
        ) from error
    _check_names("llamacpp", settings, LlamaCppSettings)
    return LlamaCppBackend(LlamaCppSettings(**settings))


def _load_openvino(settings: Mapping[str, Any]) -> Backend:
    try:
        from jitney.backends.openvino.backend import OpenVinoBackend, OpenVinoSettings
    except ImportError as error:
        raise missing("openvino", error) from error
    _check_names("openvino", settings, OpenVinoSettings)
    return OpenVinoBackend(OpenVinoSettings(**settings))


def missing(name: str, error: ImportError) -> Exception:
    """What to raise when a backend cannot be imported: a sentence, where a library is missing."""
    from jitney.backends.llamacpp import usable as llamacpp_usable
    from jitney.backends.openvino import usable as openvino_usable

    packages = {
        "llamacpp": ("llama.cpp", ("jitney_llama", "llama_cpp"), llamacpp_usable.ADVICE),
        "openvino": ("openvino", openvino_usable.LIBRARIES, openvino_usable.ADVICE),
    }
    package, modules, advice = packages[name]
    if (error.name or "").split(".")[0] not in modules:
        return error
    return MissingDependency(
        f"the {name} backend needs {package}, which is not installed: {advice}."
    )


def _check_names(backend: str, settings: Mapping[str, Any], kind: type[Any]) -> None:
    known = {field.name for field in fields(kind)}
    for name in settings:
        if name not in known:
            raise ConfigError(
                f"the {backend} backend has no setting {name!r}; it has {', '.join(sorted(known))}."
            )
