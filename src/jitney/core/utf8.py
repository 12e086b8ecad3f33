"""Encodes texts as UTF-8. Half of a surrogate pair is refused here. Any thread."""

from jitney.core import limits
from jitney.errors import InvalidRequest


def utf8_bytes(text: str, where: str, parameter: str | None = None) -> bytes:
    """The text in UTF-8. Raises InvalidRequest with the name of the text."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"Half of a surrogate pair in {where} is not a character; "
            "decode it from its source as UTF-8.",
            parameter,
        ) from None


def checked_bytes(text: str) -> bytes:
    """The text in UTF-8. Raises InvalidRequest if it is too long or not valid."""
    if len(text) > limits.PROMPT_CHARACTERS_MAX:
        raise InvalidRequest(
            f"The text has {len(text)} characters; the limit is {limits.PROMPT_CHARACTERS_MAX}."
        )
    return utf8_bytes(text, "the text")
