"""Unit tests of what the torch backend brings along when it is imported."""

import subprocess
import sys

from tests.backends_for_tests import needs_installed

ABSENT = (
    *("fastapi", "starlette", "pydantic", "uvicorn", "h11", "openvino", "openvino_genai"),
    *("gguf", "huggingface_hub", "transformers"),
)
"""What a machine with a GPU need not have, to run a folder in Python."""


def test_it_needs_neither_the_server_nor_another_backend() -> None:
    """Guards machines with a GPU on which nothing can be installed."""
    needs_installed("torch")
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({ABSENT!r}))\n"
        "import jitney.engine.engine, jitney.backends.torch.backend\n"
        "import jitney.backends.torch.hub_tensors, jitney.backends.torch.kind\n"
        "print('imported')"
    )
    command = [sys.executable, "-P", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "imported", done.stderr
