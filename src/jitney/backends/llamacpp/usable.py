"""Whether llama.cpp is here and works on this machine. Light: nothing of the library is loaded.

Asked at start-up and by `jitney backends`, on any thread.
"""

import signal
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any  # Any: plain values for the backend's settings

from jitney.backends.llamacpp import library
from jitney.backends.trials import selftest

EXTRA = "llama"
ADVICE = (
    "`make llama` adds llama.cpp, or `jitney backends --add llamacpp`, or the extra `llama` of "
    "jitney, which compiles it"
)
"""What to do where it is not installed."""


def is_installed() -> bool:
    """Whether the library is there; whether it can be loaded is not tried."""
    return library.find() is not None


def distributions() -> tuple[str, ...]:
    """What brought the library, by the names of packages."""
    found = library.find()
    return () if found is None else (found.distribution,)


def version() -> str | None:
    """The version of the package that brought it, with its name; None where it is not known."""
    for name in distributions():
        try:
            return f"{metadata.version(name)} ({name})"
        except metadata.PackageNotFoundError:
            return None
    return None


def failure(cache: Path) -> str | None:
    """Why it cannot run models here, as a clause; None when it was seen to run one."""
    found = selftest.verdict("llamacpp", {"extra_kernels": True}, distributions(), cache)
    if found.signal == signal.SIGILL:
        # Its fastest kernels may be what the compiler got wrong; each model is tried without them.
        found = selftest.verdict("llamacpp", {"extra_kernels": False}, distributions(), cache)
    if found.signal == signal.SIGILL:
        return "it was compiled for another processor and stops with an illegal instruction"
    return found.failure


def trial_settings(model: Path, folder: Path, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """What the backend is told to run the tiny model, which it reads as it is."""
    del folder
    return {"model": str(model), "threads": 2, "slot_tokens_max": 256, **numbers}
