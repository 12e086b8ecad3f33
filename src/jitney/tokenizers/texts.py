"""A text before native code sees it: bounded, and whole. Called by backends, on any thread.

Tests: tests/conformance/test_tokenizer.py.
"""

from jitney.core import limits
from jitney.core.utf8 import utf8_bytes
from jitney.errors import InvalidRequest


def checked_bytes(text: str) -> bytes:
    """The text in UTF-8. Raises InvalidRequest for what no tokenizer should be given."""
    if len(text) > limits.PROMPT_CHARACTERS_MAX:
        raise InvalidRequest(
            f"the text has {len(text)} characters; "
            f"at most {limits.PROMPT_CHARACTERS_MAX} are tokenised."
        )
    return utf8_bytes(text, "the text")
