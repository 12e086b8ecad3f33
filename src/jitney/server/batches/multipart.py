"""Reads a form with a file in it, piece by piece: `FormReader`. Pure; event loop.

Strict, and bounded: it holds a boundary's length and the headers of one part, never a file. What
is not a form of RFC 7578 is refused.
"""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from jitney.server.batches import limits

_BOUNDARY = re.compile(
    r'multipart/form-data\s*;.*?\bboundary=(?:"([^"]+)"|([^\s;"]+))', re.IGNORECASE
)
_NAME = re.compile(r'[;\s]name="((?:[^"\\]|\\.)*)"')
_FILENAME = re.compile(r'[;\s]filename="((?:[^"\\]|\\.)*)"')
_DISPOSITION = re.compile(r"content-disposition\s*:\s*form-data\b(.*)", re.IGNORECASE)


class BadForm(Exception):
    """This is not a form, or it is made to be expensive."""


@dataclass(frozen=True, slots=True)
class PartBegin:
    """A field begins; with a filename it is a file."""

    name: str
    filename: str | None


FormEvent = PartBegin | bytes
"""Bytes are more of the field that began last."""


def boundary_of(content_type: str) -> bytes:
    """The text between the parts, from the header of the request. Raises BadForm."""
    found = _BOUNDARY.match(content_type.strip())
    text = "" if found is None else found[1] or found[2]
    if not 0 < len(text) <= limits.BOUNDARY_CHARACTERS_MAX or not text.isascii():
        raise BadForm("The form has no boundary.")
    return text.encode()


class FormReader:
    """What was seen of one form. Raises BadForm."""

    def __init__(self, boundary: bytes) -> None:
        self._delimiter = b"\r\n--" + boundary
        # The first boundary has no line before it.
        self._held = bytearray(b"\r\n")
        self._reading = self._read()
        self.is_over = False
        """Whether the last boundary was seen."""

    def feed(self, piece: bytes) -> list[FormEvent]:
        """What the next bytes of the body hold."""
        if self.is_over:
            # A last line end is usual, and more is nobody's.
            return []
        self._held += piece
        events: list[FormEvent] = []
        while (event := next(self._reading, None)) is not None:
            events.append(event)
        return events

    def _read(self) -> Iterator[FormEvent | None]:
        """All events of the form. None waits for more of it, here and below."""
        held = self._held
        while len(held) < len(self._delimiter):
            yield None
        if not held.startswith(self._delimiter):
            raise BadForm("The form does not begin with its boundary.")
        del held[: len(self._delimiter)]
        for count in itertools.count():
            while len(held) < 2:
                yield None
            if held.startswith(b"--"):
                self.is_over = True
                held.clear()
                return
            if not held.startswith(b"\r\n"):
                raise BadForm("A boundary of the form is followed by something else.")
            if count == limits.FORM_FIELDS_MAX:
                raise BadForm(f"The form has more than {limits.FORM_FIELDS_MAX} fields.")
            del held[:2]
            yield from self._read_field()

    def _read_field(self) -> Iterator[FormEvent | None]:
        """The headers and the content of a field, and the boundary behind it."""
        held = self._held
        while (end := held.find(b"\r\n\r\n", 0, limits.PART_HEADER_BYTES_MAX)) < 0:
            if len(held) >= limits.PART_HEADER_BYTES_MAX:
                raise BadForm("The headers of a field are too long.")
            yield None
        yield _read_headers(bytes(held[:end]))
        # The empty line ends the headers; the content may be empty, and its boundary follows.
        del held[: end + 4]
        while (end := held.find(self._delimiter)) < 0:
            # The end of what is held may be the beginning of a boundary.
            count = max(len(held) - len(self._delimiter) + 1, 0)
            if count:
                yield bytes(held[:count])
            del held[:count]
            yield None
        if end:
            yield bytes(held[:end])
        del held[: end + len(self._delimiter)]


def _read_headers(head: bytes) -> PartBegin:
    try:
        lines = head.decode("utf-8").split("\r\n")
    except UnicodeDecodeError:
        raise BadForm("The headers of a field are not text in UTF-8.") from None
    for line in lines:
        found = _DISPOSITION.fullmatch(line)
        name = None if found is None else _NAME.search(found[1])
        if found is not None and name is not None:
            filename = _FILENAME.search(found[1])
            return PartBegin(name[1], None if filename is None else filename[1])
    raise BadForm("A field of the form has no name.")
