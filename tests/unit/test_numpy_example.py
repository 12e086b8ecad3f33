"""The example of a backend computes what its model says; the conformance suite tests the rest."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf", reason="needs the gguf package")

from examples.numpy_backend.llama import Llama
from jitney.models.tiny import tiny_logprobs, write_tiny_gguf

TOKENS = [5, 80, 7, 7, 200]


def test_the_logits_are_those_of_the_model(tmp_path: Path) -> None:
    """Guards the mathematics: a wrong turn or a wrong head would still answer something."""
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    model = Llama(path)
    shape = model.token_shape
    kv = np.zeros((shape.layers, 2, 8, shape.heads, shape.head), np.float32)
    places = [6, 1, 0, 3, 2]
    contexts = [places[: position + 1] for position in range(len(TOKENS))]
    logits = model.logits(model.forward(TOKENS, contexts, kv))
    expected = tiny_logprobs(tuple(TOKENS))
    # Logprobs are the logits but for one number in each row.
    assert np.ptp(logits - expected, axis=-1).max() < 1e-3
