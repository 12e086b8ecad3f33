"""Whether OpenVINO is here and works on this machine. Light: nothing of the library is loaded.

Asked at start-up and by `jitney backends`, on any thread. Its paged attention is compiled for some
processors only, and one that lacks it is found by trying: the library refuses, or the process dies.
"""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any  # Any: plain values for the backend's settings

from jitney.backends.openvino.families import Dtypes, dtypes
from jitney.backends.trials import selftest

ADVICE = "the extra `openvino` of jitney installs it"
"""What to do where it is not installed."""
LIBRARIES = ("openvino", "openvino_genai", "gguf", "tokenizers")
DISTRIBUTIONS = ("openvino", "openvino-genai", "gguf", "tokenizers")
_ATTENTION = "PagedAttention"


def is_installed() -> bool:
    """Whether all libraries are there; whether they can be loaded is not tried."""
    return all(importlib.util.find_spec(library) is not None for library in LIBRARIES)


def distributions() -> tuple[str, ...]:
    """What brings the libraries, by the names of packages."""
    return DISTRIBUTIONS


def version() -> str | None:
    """The version of the library; None where it is not known."""
    try:
        return metadata.version(DISTRIBUTIONS[0])
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings that say what to compute with, by their own names and values."""

    dtype: str
    kv_cache_dtype: str
    threads: int


@dataclass(frozen=True, slots=True)
class Here:
    """What the settings amount to on this machine, and why that does not work; None if it does."""

    dtypes: Dtypes
    failure: str | None


def here(wanted: Wanted, cache: Path) -> Here:
    """The numbers to compute with, tried: where the choice is ours, the best that works."""
    first = dtypes(wanted.dtype, wanted.kv_cache_dtype, wanted.threads)
    if not is_installed():
        return Here(first, "it is not installed")
    found = Here(first, _failure(first, wanted.threads, cache))
    if found.failure is not None and wanted.dtype == "auto" and first.inference != "f32":
        plain = dtypes("auto", wanted.kv_cache_dtype, wanted.threads, is_half=False)
        second = Here(plain, _failure(plain, wanted.threads, cache))
        return second if second.failure is None else found
    return found


def _failure(chosen: Dtypes, threads: int, cache: Path) -> str | None:
    numbers = {
        "inference_precision": chosen.inference,
        "kv_precision": chosen.kv,
        "activation_group": chosen.activation_group,
        # What it compiles depends on whether there is more than one, and on nothing else.
        "threads": min(threads, 2),
    }
    found = selftest.verdict("openvino", numbers, distributions(), cache)
    if found.failure is not None and _ATTENTION in found.failure:
        return "its paged attention does not exist for this processor"
    return found.failure


def trial_settings(model: Path, folder: Path, numbers: Mapping[str, Any]) -> dict[str, Any]:
    """What the backend is told to run the tiny model, which is converted first."""
    convert = importlib.import_module("jitney.backends.openvino.convert")
    target = folder / "converted"
    target.mkdir()
    weights = "float16" if numbers["inference_precision"] == "bf16" else "packed"
    convert.write_model(model, target, weights=weights)
    return {"model": str(target), "vocabulary": str(model), "model_len_max": 512, **numbers}
