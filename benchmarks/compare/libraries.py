"""The libraries that `benchmarks.compare` knows and that are installed here, each loaded late."""

import importlib
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from jitney_lab.bench.workload import Workload

Load = Callable[[], Callable[[Workload], float]]
"""Loads a model; what it returns runs a workload and gives completion tokens per second."""

CONTROL_TOKENS = 100
"""Most vocabularies begin with tokens that are no text."""


def library_peers(model: Path, slots: int) -> list[tuple[str, Load]]:
    """A name and a loader for each way of running a library that is installed."""
    found: list[tuple[str, Load]] = []
    if is_installed("openvino_genai"):
        # 256 tokens is its default, 2048 the engine's: which is faster depends on the machine.
        found += [
            (
                f"OpenVINO GenAI ({tokens} tokens a pass)",
                partial(_load, "genai", "GenAi", model, slots, tokens),
            )
            for tokens in (256, 2048)
        ]
    if is_installed("transformers") and is_installed("torch"):
        found += [
            (
                f"transformers ({dtype})",
                partial(_load, "hf_transformers", "HfTransformers", model, dtype),
            )
            for dtype in ("float32", "bfloat16")
        ]
    return found


def text_tokens(token_count: int) -> range:
    """Tokens for prompts, of a vocabulary with so many: without the first, which may be no text."""
    return range(min(CONTROL_TOKENS, token_count // 2), token_count)


def is_installed(name: str) -> bool:
    """Whether a module is there. Python imports the packages around it to find out."""
    try:
        return find_spec(name) is not None
    except Exception:  # a broken package may raise anything, and then it is of no use
        return False


def _load(module: str, kind: str, *arguments: object) -> Callable[[Workload], float]:
    found = getattr(importlib.import_module(f"benchmarks.compare.{module}"), kind)
    rate: Callable[[Workload], float] = found(*arguments).rate
    return rate
