"""Texts that UTF-8 can carry: half of a surrogate pair is refused here. Any thread."""

from jitney.errors import InvalidRequest


def utf8_bytes(text: str, where: str, parameter: str | None = None) -> bytes:
    """The text in UTF-8. Raises InvalidRequest, which says where the text came from."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"half of a surrogate pair in {where} is no character; "
            "decode it from its source as UTF-8.",
            parameter,
        ) from None
