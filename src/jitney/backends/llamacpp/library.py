"""Which llama.cpp is here: the package `jitney_llama`, or llama-cpp-python.

`jitney_llama` holds the libraries alone, prebuilt or compiled (see `prebuilt`), and comes first; it
is spoken to through `capi`. llama-cpp-python has an interface of its own to the library in it.
`find` is light; `native` loads, once per process, from any thread.
"""

import functools
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitney.backends.llamacpp import capi

PACKAGES = {"jitney_llama": "jitney-llama", "llama_cpp": "llama-cpp-python"}
"""Modules that bring the library, by preference, and the names under which they are installed."""


@dataclass(frozen=True, slots=True)
class Found:
    """A package with the library in it."""

    module: str
    folder: Path

    @property
    def distribution(self) -> str:
        """The name under which it is installed."""
        return PACKAGES[self.module]


def find() -> Found | None:
    """The package that would be used; None when there is none. Nothing is loaded."""
    for module in PACKAGES:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            return Found(module, Path(spec.origin).parent / "lib")
    return None


@functools.cache
def native() -> Any:  # Any: functions of ctypes
    """The functions of the library. Raises ImportError, MissingDependency, or what loading it did.

    Cached, since a process can hold the library only once.
    """
    found = find()
    if found is None:
        raise ModuleNotFoundError("llama.cpp is not here", name="jitney_llama")
    if found.module == "llama_cpp":
        return importlib.import_module("llama_cpp")
    return capi.load(found.folder)
