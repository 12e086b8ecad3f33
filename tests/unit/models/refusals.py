"""What readers of models say of a bad file, for the tests of all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from jitney.errors import ModelError


def refusal_by(read: Callable[[Path], object], path: Path) -> str:
    """What a reader says; exactly one line, and it names the file."""
    with pytest.raises(ModelError) as caught:
        read(path)
    sentence = str(caught.value)
    assert str(path) in sentence
    assert "\n" not in sentence
    assert sentence.endswith(".")
    return sentence
