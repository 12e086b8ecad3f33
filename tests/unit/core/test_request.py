"""What UTF-8 cannot carry is refused where it comes in."""

import pytest

from jitney.core.request import utf8_bytes
from jitney.errors import InvalidRequest


def test_half_of_a_surrogate_pair_is_refused_with_its_place() -> None:
    """Guards native code, which takes bytes; the caller is told which text it was."""
    assert utf8_bytes("aé", "the prompt") == "aé".encode()
    with pytest.raises(InvalidRequest, match="surrogate pair in the prompt") as refusal:
        utf8_bytes("a\ud800", "the prompt", "prompt")
    assert refusal.value.parameter == "prompt"
