"""Finds and loads the installed llama.cpp: the package `jitney_llama`, or llama-cpp-python.

`jitney_llama` comes first. It has only the libraries, prebuilt or compiled (see `prebuilt`), and
`capi` calls them. llama-cpp-python has its own Python interface to its library. `find` loads
nothing; `native` loads once per process. Any thread.
"""

import functools
import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jitney.backends.llamacpp import capi

GPUS = ("cann", "cuda", "hip", "metal", "musa", "opencl", "sycl", "vulkan")
PACKAGES = {"jitney_llama": "jitney-llama", "llama_cpp": "llama-cpp-python"}
"""Modules with the library, the preferred one first, and the names of their packages in pip."""


@dataclass(frozen=True, slots=True)
class LlamaPackage:
    """An installed package with the library."""

    module: str
    folder: Path


def find() -> LlamaPackage | None:
    """The package to use; None when there is none. Loads nothing."""
    for module in PACKAGES:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.origin is not None:
            return LlamaPackage(module, Path(spec.origin).parent / "lib")
    return None


def gpus() -> list[str]:
    """What the library was built for besides the processor, by the names of its files."""
    found = find()
    if found is None:
        return []
    return [gpu for gpu in GPUS if any(found.folder.glob(f"libggml-{gpu}.*"))]


@functools.cache
def native() -> Any:  # Any: functions of ctypes
    """The functions of the library. Raises ImportError, MissingDependency, or an error of loading.

    Cached, because a process can load the library only once.
    """
    found = find()
    if found is None:
        raise ModuleNotFoundError("llama.cpp is not installed", name="jitney_llama")
    if found.module == "llama_cpp":
        return importlib.import_module("llama_cpp")
    return capi.load(found.folder)


def handle() -> Any:  # Any: a library of ctypes
    """The library itself, for functions that llama-cpp-python has no names for. As `native`.

    None where a release of it keeps the library under another name.
    """
    loaded = native()
    if hasattr(loaded, "handle"):
        return loaded.handle
    return getattr(importlib.import_module("llama_cpp.llama_cpp"), "_lib", None)
