"""Passes that are sent ahead, on the CPU with the kernels in Triton's interpreter."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton, which has no package everywhere")
import torch

from jitney.backends.torch.gpu_backend import GpuBackend
from jitney.backends.torch.gpu_loading import GpuSizes, load_on_gpu
from jitney.core.batch import Batch, Copy, Entry, Open, Outcome, Sampling
from jitney.models.tiny import TinyShape, write_tiny_gguf

GREEDY = Sampling(seed=1, prompt_count=5)
PROMPT = (5, 9, 11, 7, 3)
SIZES = GpuSizes(
    slots=4, kv_tokens=512, max_num_batched_tokens=64, model_len_max=128, dtype="float32"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with as few products as can be: the interpreter takes 10 ms for a tile of one."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.gguf"
    write_tiny_gguf(path, shape=TinyShape(layers=1, width=64, heads=2, heads_kv=1, inner=64))
    return path


@pytest.fixture
def backend(model: Path) -> Iterator[GpuBackend]:
    """It, with kernels in the interpreter."""
    made = GpuBackend(load_on_gpu(model, SIZES, torch.device("cpu")))
    yield made
    made.close()


def _token(outcome: Outcome | None, index: int = 0) -> int:
    assert outcome is not None
    token = outcome.samples[index].token
    assert token is not None, outcome.samples[index].fault
    return token


def _text(backend: GpuBackend, sampling: Sampling, count: int, *, ahead: bool) -> list[int]:
    """Tokens of slot 0, with each pass sent before the last one's token is known, or after it."""
    start = len(PROMPT)
    backend.send(Batch(1, (Open(0, sampling),), (Entry(0, 0, PROMPT, True),)))
    tokens: list[int] = []
    for index in range(count - 1):
        entry = Entry(0, start + index, (), True, continues=True)
        if ahead:
            backend.send(Batch(2 + index, (), (entry,)))
        tokens.append(_token(backend.receive()))
        if not ahead:
            backend.send(
                Batch(2 + index, (), (replace(entry, tokens=(tokens[-1],), continues=False),))
            )
    tokens.append(_token(backend.receive()))
    backend.reset()
    return tokens


@pytest.mark.parametrize(
    "sampling",
    [
        replace(GREEDY, temperature=0.8),
        replace(GREEDY, frequency_penalty=0.5),
    ],
    ids=["drawn", "penalty"],
)
def test_passes_sent_ahead_give_the_same_tokens(backend: GpuBackend, sampling: Sampling) -> None:
    """A pass that continues takes a token that the host has not seen, or waits for the host's."""
    assert _text(backend, sampling, 2, ahead=True) == _text(backend, sampling, 2, ahead=False)


def test_a_copy_after_a_pass_in_flight_has_its_tokens(backend: GpuBackend) -> None:
    """The copied slot continues like the first one, whose last token was not read before."""
    backend.send(Batch(1, (Open(0, GREEDY),), (Entry(0, 0, PROMPT, True),)))
    backend.send(Batch(2, (), (Entry(0, 5, (), True, continues=True),)))
    first = _token(backend.receive())
    backend.send(
        Batch(
            3,
            (Copy(0, 1, 5), Open(1, GREEDY)),
            (Entry(0, 6, (), True, continues=True), Entry(1, 5, (first,), True)),
        )
    )
    second = _token(backend.receive())
    outcome = backend.receive()
    assert _token(outcome, 1) == second
