"""The trial itself, on the real llama.cpp: it agrees with numpy, and only if nothing is wrong."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.kinds import load
from jitney.backends.llamacpp.kind import trial_values
from jitney.backends.trials.numpy_check import (
    DIFFERENCE_MAX,
    SEED,
    SHAPE,
    SIZES,
    check_backend,
    mean_difference,
)
from jitney.backends.trials.trial import CHILD, try_backend
from jitney.backends.trials.trial_process import EXIT_REFUSED, TrialResult
from jitney.models.tiny import write_tiny_gguf

WAIT_S = 120
FAR = 4 * DIFFERENCE_MAX
"""Each of the mistakes below is at twice this and more; what is right is at a twelfth of it."""


def difference(model: Path, **numbers: bool) -> float:
    backend = load("llamacpp", trial_values(model, model.parent, numbers) | SIZES)
    try:
        return mean_difference(backend)
    finally:
        backend.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, seed=SEED, shape=SHAPE)
    return path


@pytest.mark.parametrize("extra_kernels", [True, False])
def test_the_library_agrees_with_numpy(model: Path, extra_kernels: bool) -> None:
    """Guards the bound from below: rounding of 8 bits must fit in it, with room."""
    assert difference(model, extra_kernels=extra_kernels) <= DIFFERENCE_MAX * 0.6
    check_backend("llamacpp", {"extra_kernels": extra_kernels})


def test_another_model_does_not_agree(model: Path) -> None:
    """Guards the bound from above: it is not so wide that anything would fit."""
    write_tiny_gguf(model, seed=SEED + 1, shape=SHAPE)
    assert difference(model) > FAR


@pytest.mark.parametrize(
    ("name", "other"),
    [
        *((f"blk.0.{kind}.weight", f"blk.1.{kind}.weight") for kind in ("attn_q", "ffn_gate")),
        ("blk.0.attn_k.weight", "blk.0.attn_v.weight"),
    ],
)
def test_one_wrong_matrix_does_not_agree(model: Path, name: str, other: str) -> None:
    """Guards against a kernel that computes one thing wrongly: the rest must not hide it."""
    kept = b"?" * len(name)
    content = model.read_bytes().replace(name.encode(), kept)
    model.write_bytes(content.replace(other.encode(), name.encode()).replace(kept, other.encode()))
    assert difference(model) > FAR


def test_what_is_no_number_does_not_agree(model: Path) -> None:
    """Guards the comparison against values that compare with nothing."""
    content = model.read_bytes()
    model.write_bytes(content[:-20_000] + b"\xff" * 20_000)
    assert not difference(model) <= DIFFERENCE_MAX


def run_child(numbers: dict[str, object], parent: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", CHILD],
        input=json.dumps({"backend": "llamacpp", "numbers": numbers, "parent": parent}),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("numbers", "status", "message"),
    [
        ({"extra_kernels": True}, 0, ""),
        ({"nonsense": 1}, EXIT_REFUSED, "The llamacpp backend has other settings: "),
    ],
)
def test_the_child_says_in_a_line_what_is_wrong(
    numbers: dict[str, object], status: int, message: str
) -> None:
    """Guards the two ends of the pipe against each other: status and last line."""
    done = run_child(numbers, os.getpid())
    assert done.returncode == status, done.stderr
    lines = done.stdout.splitlines() or [""]
    assert lines[-1].startswith(message)


def test_a_child_whose_parent_is_gone_tries_nothing() -> None:
    """Guards a start that was interrupted: nobody reads what an orphan finds."""
    done = run_child({"nonsense": 1}, os.getppid())
    assert done.returncode != 0
    assert (done.stdout, done.stderr) == ("", "")


def test_what_the_child_says_arrives(tmp_path: Path) -> None:
    """Guards the whole way through a real process, to a clause that is remembered."""
    found = try_backend("llamacpp", {"nonsense": 1}, (), tmp_path)
    assert (found.failure or "").startswith("The llamacpp backend has other settings: ")
    assert found == TrialResult(failure=found.failure, status=EXIT_REFUSED)
    assert len(list(tmp_path.rglob("*.json"))) == 1
