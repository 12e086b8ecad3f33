"""Every backend that can be built here, under one name: the fixture `built`."""

import importlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from jitney.backends import load, load_process
from jitney.backends.llamacpp import attention
from jitney.core.backend import Backend
from tests.backends_for_tests import needs, needs_installed
from tests.conformance.driver import Driver

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


@pytest.fixture(scope="session")
def tiny_converted(tiny_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as OpenVINO reads it."""
    needs_installed("openvino")
    convert = importlib.import_module("jitney.backends.openvino.convert")
    folder = tmp_path_factory.mktemp("converted")
    convert.write_model(tiny_gguf, folder)
    return folder


@pytest.fixture(
    scope="module",
    params=[
        *("fake", "fake-blocks", "fake-process"),
        *("llamacpp", "llamacpp-process", "llamacpp-cells"),
        *("openvino", "openvino-process"),
    ],
)
def built(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """One backend of each kind, kept for a whole module because a model takes time to load."""
    kind: str = request.param
    settings: dict[str, str | int | float | bool] = {
        "slots": SLOTS,
        "kv_tokens": KV_TOKENS,
        "max_num_batched_tokens": BATCH_TOKENS_MAX,
    }
    name = kind.split("-")[0]
    if name == "llamacpp":
        needs("llamacpp")
        settings |= {
            "model": str(request.getfixturevalue("tiny_gguf")),
            # More would spin for each other on a busy machine, and the model is tiny.
            "threads": 1,
            "gpu_layers": 0,
        }
        if kind == "llamacpp-cells":
            # Each slot has cells of its own, and all is computed alike.
            settings |= asdict(attention.SHAPE_UNTRIED)
            settings |= {
                "kv_tokens": SLOTS * CELLS,
                "slot_tokens_max": CELLS,
                "flash_attention": False,
                "batch_invariant": True,
            }
    elif name == "openvino":
        needs("openvino", threads=1, dtype="float32", kv_cache_dtype="float32")
        settings |= {
            "model": str(request.getfixturevalue("tiny_converted")),
            "vocabulary": str(request.getfixturevalue("tiny_gguf")),
            "model_len_max": 512,
            "threads": 1,
        }
    else:
        settings |= {"eos_period": 0, "model_len_max": 512}
    if kind == "fake-blocks":
        settings["block_tokens"] = 16
    build = load_process if kind.endswith("-process") else load
    backend = build(name, settings)
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
