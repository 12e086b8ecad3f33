"""Runs the kernels in Triton's interpreter, on the CPU."""

import os
import sys
from typing import Any  # Any: the insides of the interpreter

import pytest

if "triton" not in sys.modules:
    # Read when Triton is imported.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True)
def _interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton
    from triton.runtime import interpreter

    assert triton.knobs.runtime.interpret, "Triton was imported before this file"
    patch_tensor = interpreter._patch_lang_tensor

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        # Triton 3.6 makes integers of arrays with one element, which numpy 2.4 refuses.
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
