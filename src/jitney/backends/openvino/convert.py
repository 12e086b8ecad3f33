"""From a GGUF to a model that OpenVINO reads, in a process of its own.

`write_model` is called on any thread and starts the child, which is this module run as a program:
the reader is native code and may crash on a file that is damaged behind its header, takes several
times the file in memory, and writes beside its input. What came out is read back before it counts.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import openvino as ov
import openvino_genai

from jitney.backends.openvino.families import FILES
from jitney.backends.openvino.requantize import Rewriting
from jitney.backends.openvino.rotary import read_rotary
from jitney.backends.openvino.rotary_graph import correct_rotary
from jitney.errors import ModelError, NoRoom
from jitney.models.gguf import read_header
from jitney.sandbox.die_with_parent import die_with_parent

START_S_MAX = 120.0
BYTES_PER_S_MIN = 4 << 20
"""A conversion that is slower than this for the size of its source is given up."""

EXIT_REFUSED = 3
EXIT_UNWRITTEN = 4
_INPUT = "model.gguf"
_EXACT = "exact.gguf"
_REASON_CHARACTERS_MAX = 300
_WRITE_FAILURE = "iostream error"
"""All that native code says of a disk that is full."""


def write_model(source: Path, folder: Path, *, weights: str = "packed") -> None:
    """Write the files of a converted model into the folder, and more. Raises ModelError.

    Weights stay packed in 8 bits or fewer, or are unpacked to float16: see `families`.
    """
    (folder / _INPUT).symlink_to(source)
    limit = START_S_MAX + source.stat().st_size / BYTES_PER_S_MIN
    command = [sys.executable, "-P", "-m", __spec__.name, str(folder), weights, str(os.getpid())]
    try:
        child = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise NoRoom(
            f"{source} was not converted for OpenVINO within {limit:.0f} s; "
            "use the llama.cpp backend."
        ) from None
    if child.returncode == EXIT_UNWRITTEN:
        raise NoRoom(
            f"{source} was not converted for OpenVINO, because files in {folder.parent} could not "
            "be written; the disk is probably full: make room, or choose another cache folder."
        )
    if child.returncode != 0:
        kind = NoRoom if child.returncode == -signal.SIGKILL else ModelError
        raise kind(
            f"{source} cannot be converted for OpenVINO: {_cause(child)}; "
            "use the llama.cpp backend, or another file of the model."
        )


def _cause(child: "subprocess.CompletedProcess[bytes]") -> str:
    status = child.returncode
    if status == EXIT_REFUSED:
        lines = child.stdout.decode("utf-8", "replace").strip().splitlines()
        return (lines[-1] if lines else "no reason given")[:_REASON_CHARACTERS_MAX]
    if status == -signal.SIGKILL:
        return "the conversion was killed, probably for lack of memory"
    name = signal.Signals(-status).name if status < 0 else f"status {status}"
    return f"the reader crashed ({name}), so the file is probably damaged"


def main(arguments: list[str]) -> int:
    """The child: 0 when the model was written, EXIT_REFUSED after a line that says why not.

    EXIT_UNWRITTEN when the fault is not the model's.
    """
    folder, weights = Path(arguments[0]), arguments[1]
    # An orphan would go on writing where the next conversion has begun.
    if not die_with_parent(int(arguments[2])):
        return EXIT_UNWRITTEN
    try:
        rewriting = _write_converted(folder, weights)
        correct_rotary(
            folder / FILES[0], read_rotary(read_header(folder / _INPUT), rewriting.factors())
        )
        # A file that was cut short is found here and not when the model is loaded.
        ov.Core().read_model(folder / FILES[0])
    except OSError:
        return EXIT_UNWRITTEN
    except (RuntimeError, ValueError, ModelError) as error:
        return EXIT_UNWRITTEN if _WRITE_FAILURE in str(error) else _refused(error)
    return 0


def _write_converted(folder: Path, weights: str) -> Rewriting:
    """Let the library convert the model, rewritten first where it must be."""
    given = folder / _INPUT
    rewriting = Rewriting(given, weights)
    if not rewriting.is_needless:
        given = folder / _EXACT
        rewriting.write(given)
    try:
        openvino_genai.LLMPipeline(str(given), "CPU", enable_save_ov_model=True)
    except (RuntimeError, ValueError) as error:
        # It writes the model first; only the reader's own tokenizer may be what failed.
        if _WRITE_FAILURE in str(error) or not (folder / FILES[0]).exists():
            raise
    # The model is written once more, and would not fit beside this.
    (folder / _EXACT).unlink(missing_ok=True)
    return rewriting


def _refused(error: Exception) -> int:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    sys.stdout.write(f"\n{lines[-1].rstrip('.') if lines else 'no reason given'}\n")
    return EXIT_REFUSED


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    # Native libraries may hang in their clean-up, and nothing here needs one.
    os._exit(status)
