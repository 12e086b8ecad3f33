"""Every backend that can be built here, under one name: the fixture `built`."""

import functools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.kind import Values
from jitney.backends.kinds import NAMES, kind_of, load, load_process
from jitney.backends.llamacpp import attention
from jitney.backends.shared.prefix_place import PrefixPlace
from jitney.backends.torch import kind as torch_kind
from jitney.core.backend import Backend
from tests.backends_for_tests import needs
from tests.conformance.driver import Driver
from tests.families_for_tests import BY_LLAMACPP, family_model
from tests.hybrids_for_tests import HYBRIDS

SLOTS = 8
KV_TOKENS = 1024
BATCH_TOKENS_MAX = 256
CELLS = 512


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few thousand weights, written on the spot."""
    models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    models.write_tiny_gguf(path)
    return path


POOL = {"slot_tokens_max": 0}
OWN_CELLS = {
    **attention.SHAPE_UNTRIED,
    "kv_tokens": SLOTS * CELLS,
    "slot_tokens_max": CELLS,
    "flash_attention": False,
    "batch_invariant": True,
}
OWN_CELLS_Q8 = {
    **OWN_CELLS,
    **asdict(attention.SHAPES["on"][1]),
    "flash_attention": True,
    "kv_type": "q8_0",
}
TILES = {
    "decode_tile": 16,
    "span_tile": 128,
    "decodes_differ": True,
    "batch_invariant": True,
}
VARIANTS: dict[str, dict[str, Any]] = {
    **{which: {} for name in NAMES for which in (name, f"{name}-process")},
    "fake-blocks": {"block_tokens": 16},
    "fake-state": {"state_bytes": 64},
    "llamacpp": POOL,
    "llamacpp-process": POOL,
    "llamacpp-cells": OWN_CELLS,
    "llamacpp-cells-q8": OWN_CELLS_Q8,
    **{f"llamacpp-{name}": POOL for name in HYBRIDS},
    "llamacpp-gemma3": OWN_CELLS,
    "llamacpp-qwen3moe": OWN_CELLS,
    "torch-tiles": {**TILES, "quantization": "int8", "kv_dtype": "fp8"},
    "torch-cuda": {"device": "cuda"},
    "torch-cuda-gemma3": {"device": "cuda"},
    "torch-cuda-process": {"device": "cuda", "batch_invariant": True, "kv_dtype": "fp8"},
    "example": {},
}
"""Every backend here and in a process of its own, some in other layouts and with other models too,
and the example."""


@functools.cache
def trial_values(name: str, model: Path) -> Values:
    """What the kind wants to run the tiny model."""
    folder = model.parent / name
    folder.mkdir(exist_ok=True)
    return kind_of(name).trial_values(model, folder, {})


@pytest.fixture(scope="module", params=list(VARIANTS))
def built(
    request: pytest.FixtureRequest, tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    """One backend of each kind, kept for a whole module because a model takes time to load."""
    which: str = request.param
    sizes = {"slots": SLOTS, "kv_tokens": KV_TOKENS, "max_num_batched_tokens": BATCH_TOKENS_MAX}
    if which == "example":
        example = pytest.importorskip("examples.numpy_backend.backend", reason="needs tokenizers")
        made = example.make_backend(example.NumpySettings(model=str(tiny_gguf), **sizes))
        yield made
        made.close()
        return
    name = which.split("-")[0]
    if which.startswith("torch-cuda") and not torch_kind.has_gpu():
        pytest.skip("there is no NVIDIA GPU with a PyTorch for it")
    needs(name, threads=1)
    # Converted, where it must be, once for all modules.
    values = dict(trial_values(name, tiny_gguf))
    if "threads" in values:
        # More would spin for each other on a busy machine, and the model is tiny.
        values["threads"] = 1
    family = which.removeprefix("llamacpp-").removeprefix("torch-cuda-")
    if family in BY_LLAMACPP:
        values["model"] = str(family_model(family))
    build = load_process if which.endswith("-process") else load
    place = PrefixPlace(
        folder=str(tmp_path_factory.mktemp("prefixes")), limit=2**30, model="tiny", shape=which
    )
    prefixes = place if kind_of(name).stores_prefixes else None
    backend = build(name, values | sizes | VARIANTS[which], prefixes)
    yield backend
    backend.close()


@pytest.fixture
def driver(built: Backend) -> Driver:
    """The backend with every slot empty."""
    built.reset()
    return Driver(built)


@pytest.fixture
def tokens(built: Backend) -> tuple[int, ...]:
    """A text of 128 tokens that are not special."""
    plain = [
        token
        for token, piece in enumerate(built.vocabulary.pieces)
        if piece and token not in built.vocabulary.control
    ]
    assert len(plain) >= 64
    return tuple(plain[(index * 37 + index * index * 5) % len(plain)] for index in range(128))
