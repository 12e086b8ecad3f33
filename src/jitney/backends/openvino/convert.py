"""Converts a GGUF to a model that OpenVINO reads, in a child process.

`write_model` is called on any thread and starts the child, which is this module run as a program.
The library's reader is native code: it may crash on a damaged file, needs several times the file in
memory, and writes beside its input. The result is read again before it is used.

Tests: tests/e2e/test_families.py and test_openvino_mistakes.py.
"""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any  # Any: what JSON can say

import openvino as ov
import openvino_genai

from jitney.backends.openvino.families import FILES
from jitney.backends.openvino.requantize import Rewriting
from jitney.backends.openvino.rotary import read_rotary
from jitney.backends.openvino.rotary_graph import correct_rotary
from jitney.backends.trials import trial_process
from jitney.errors import ModelError, NoRoom
from jitney.models.gguf import read_header

START_S_MAX = 120.0
BYTES_PER_S_MIN = 4 << 20
"""A conversion that is slower than this is stopped."""

_INPUT = "model.gguf"
_EXACT = "exact.gguf"
_PROBE_BYTES = 1 << 20


def write_model(source: Path, folder: Path, *, weights: str = "packed") -> None:
    """Write a converted model into the folder, beside other files. Raises ModelError.

    Weights stay packed in 8 bits or fewer, or are unpacked to float16: see `families`.
    """
    (folder / _INPUT).symlink_to(source)
    limit_s = START_S_MAX + source.stat().st_size / BYTES_PER_S_MIN
    found = trial_process.ask(__spec__.name, {"folder": str(folder), "weights": weights}, limit_s)
    if found.failure is None:
        return
    if found.status == trial_process.EXIT_NO_ROOM:
        raise NoRoom(f"{source} was not converted for OpenVINO, because {found.failure}.")
    may_pass = found.status in (-signal.SIGKILL, trial_process.NO_END)
    is_crash = not may_pass and found.status != trial_process.EXIT_REFUSED
    damage = ", so the file is probably damaged" if is_crash else ""
    kind = NoRoom if may_pass else ModelError
    raise kind(
        f"{source} cannot be converted for OpenVINO: {found.failure}{damage}; "
        "use the llama.cpp backend, or another file of the model."
    )


def convert(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    """The work of the child. Raises ModelError, or NoRoom where the model is not the cause."""
    folder = Path(payload["folder"])
    try:
        rewriting = _write_converted(folder, payload["weights"])
        correct_rotary(
            folder / FILES[0], read_rotary(read_header(folder / _INPUT), rewriting.factors())
        )
        # Finds a file that was cut short, before the model is loaded.
        ov.Core().read_model(folder / FILES[0])
    except OSError as error:
        raise _unwritten(folder) from error
    except (RuntimeError, ValueError, ModelError) as error:
        if _is_full(folder):
            raise _unwritten(folder) from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ModelError(lines[-1] if lines else "no reason given") from error
    return {}


def _write_converted(folder: Path, weights: str) -> Rewriting:
    """Let the library convert the model; rewrite it first where necessary."""
    model = folder / _INPUT
    rewriting = Rewriting(model, weights)
    if not rewriting.is_needless:
        model = folder / _EXACT
        rewriting.write(model)
    try:
        openvino_genai.LLMPipeline(str(model), "CPU", enable_save_ov_model=True)
    except (RuntimeError, ValueError):
        # The library writes the model first. Then only its own tokenizer can have failed.
        if not (folder / FILES[0]).exists() or _is_full(folder):
            raise
    # The model is written once more, and this file takes its room.
    (folder / _EXACT).unlink(missing_ok=True)
    return rewriting


def _is_full(folder: Path) -> bool:
    """Whether the files in the folder cannot grow. Native code only says that it failed."""
    try:
        for path in (folder / name for name in FILES):
            with path.open("ab") as file:
                size = file.tell()
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                file.truncate(size)
    except OSError:
        return True
    return False


def _unwritten(folder: Path) -> NoRoom:
    return NoRoom(
        f"files in {folder.parent} could not be written; the disk is probably full: make room, or "
        "choose another cache folder."
    )


if __name__ == "__main__":
    # The child ends with its parent, or it would write into the folder of the next conversion.
    trial_process.answer(convert)
