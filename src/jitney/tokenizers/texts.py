"""Checks a text before native code gets it. Called by backends, on any thread.

Tests: tests/conformance/test_tokenizer.py.
"""

from jitney.core import limits
from jitney.core.utf8 import utf8_bytes
from jitney.errors import InvalidRequest


def checked_bytes(text: str) -> bytes:
    """The text in UTF-8. Raises InvalidRequest if it is too long or not valid."""
    if len(text) > limits.PROMPT_CHARACTERS_MAX:
        raise InvalidRequest(
            f"The text has {len(text)} characters; the limit is {limits.PROMPT_CHARACTERS_MAX}."
        )
    return utf8_bytes(text, "the text")
