"""Which attention kernel llama.cpp is to use, and in which shape of pass: tried, and remembered.

Fused attention computes a single token as it computes one of a prompt, as long as few are computed
together; the other kernels are faster for long prompts, and compute a single token otherwise. For
each of the two a trial finds the shape in which all is alike, and its speed. Called at start-up,
from any thread; one process tries at a time.
"""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any  # Any: settings are plain values until a backend has checked them

from jitney.backends.llamacpp.shape import Shape
from jitney.backends.trials import invariance, measure, shape_trial

_log = logging.getLogger("jitney")

LONE_TOKENS_MAX = 255
"""The fused kernel cuts a sequence that is alone and has 512 cells among its threads; cells are
counted in steps of 256. It has another way for 64 rows and more of one sequence."""

SHAPES = {
    "on": (
        Shape(span_rows_max=60, lone_tokens_max=LONE_TOKENS_MAX),
        Shape(rows_group=4, span_rows_min=4, span_rows_max=60),
    ),
    "off": (
        Shape(),
        Shape(span_rows_min=2, decodes_differ=True),
        Shape(span_rows_min=8, decodes_differ=True),
        Shape(rows_group=4, span_rows_min=8, decodes_differ=True),
    ),
}
"""What is tried, by whether attention is fused; the cheapest first."""
SHAPE_UNTRIED = Shape(rows_group=4, span_rows_min=8, decodes_differ=True)
"""For models that are too small to be worth a trial, with attention that is not fused."""
SEQUENCES = 4
"""So many take part in a measurement of the speed."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether attention is fused, and the shape in which all is computed alike, if there is one."""

    is_fused: bool
    shape: Shape | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What may be chosen from, and where trials are remembered."""

    kernels: tuple[str, ...]
    """Of `on` and `off`, which are allowed."""
    wants_alike: bool
    cache: Path
    facts: object
    distributions: tuple[str, ...]


def choose(told: Mapping[str, Any], asked: Asked) -> Choice:
    """The faster kernel, of those that compute alike if that is wanted and there is one."""
    shapes = {name: SHAPES[name] if asked.wants_alike else () for name in asked.kernels}
    tried = [[name, [asdict(shape) for shape in each]] for name, each in shapes.items()]
    memory = shape_trial.memory_path(asked.cache, [asked.facts, tried])
    found = shape_trial.recall(memory, asked.kernels)
    if found is None:
        with measure.undisturbed(asked.cache):
            # Another process may have tried while this one waited.
            found = shape_trial.recall(memory, asked.kernels)
            if found is None:
                _log.warning("trying which attention kernels are best for this model here, once")
                found = {name: _try(told, name, each) for name, each in shapes.items()}
                shape_trial.remember(memory, found, asked.distributions)
    alike = [name for name in asked.kernels if found[name].shape is not None]
    best = max(alike or asked.kernels, key=lambda name: found[name].tokens_per_s)
    shape = found[best].shape
    return Choice(best == "on", None if shape is None else Shape(**shape))


def _try(told: Mapping[str, Any], kernel: str, shapes: tuple[Shape, ...]) -> shape_trial.Found:
    settings = dict(told) | {
        "kv_tokens": invariance.SLOTS * invariance.SLOT_TOKENS,
        "slot_tokens_max": invariance.SLOT_TOKENS,
        "max_num_batched_tokens": max(int(told["max_num_batched_tokens"]), invariance.SLOT_TOKENS),
        "flash_attention": kernel == "on",
    }
    return shape_trial.try_shapes(
        "llamacpp", settings, [asdict(shape) for shape in shapes], SEQUENCES
    )
