"""Conversion of a GGUF to Q8_0 by llama.cpp. Called at start-up; takes seconds per GB."""

from pathlib import Path

from jitney.backends.llamacpp import bindings


def quantize_q8(source: Path, target: Path) -> None:
    """Write `source` again as Q8_0 on all cores; `target` may be left half done by a failure.

    Nothing is lost from a 4-bit or 5-bit source. Raises ModelError.
    """
    bindings.quantize(source, target, threads=0)
