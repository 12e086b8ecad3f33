"""Reads an input line by line, and checks what stands around the body of each. Any thread.

A wrong line is an error of that line; the others go on. Reading is bounded: a line that is too long
is skipped without being held. Bodies are checked when they are asked, by the code for any body.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from typing import Annotated, Any, Literal

from pydantic import StringConstraints

from jitney.server.batches import limits
from jitney.server.batches.message_lines import MESSAGES, MessageLine, refused_message
from jitney.server.batches.rows import StoredLine, refused_line
from jitney.server.error_object import Refusal
from jitney.server.openai.bodies import Strict
from jitney.server.openai.check_body import check_fields, parse_object

Endpoint = Literal["/v1/chat/completions", "/v1/completions"]

_BOM = b"\xef\xbb\xbf"
"""Some editors put it at the beginning of a file."""


class BatchLine(Strict):
    """One line of an input."""

    custom_id: Annotated[
        str, StringConstraints(min_length=1, max_length=limits.CUSTOM_ID_CHARACTERS_MAX)
    ]
    method: Literal["POST"]
    url: Endpoint
    body: dict[str, Any]  # Any: a JSON value, checked when it is asked


@dataclass(frozen=True, slots=True)
class RawLine:
    """A line as it stands in the input: its place, and its text; None if it is too long.

    Blank lines that follow one another may be one of these, with their `count`.
    """

    start: int
    length: int
    content: bytes | None
    count: int = 1

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing on it."""
        return self.content is not None and not self.content.strip()


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """Lines of one part of an input, and where the next part begins."""

    lines: tuple[StoredLine, ...]
    read_bytes: int
    read_lines: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class LineCheck:
    """The rules for lines of one batch. Without an endpoint, a line may have any. `is_taken` says
    whether an earlier line has an id."""

    endpoint: str | None
    line_bytes_max: int
    values_max: int
    is_taken: Callable[[str], bool]

    def check_part(self, file: BufferedReader, read_bytes: int, read_lines: int) -> CheckedPart:
        """Check the next lines of an input, as many as are checked in one go."""
        found: list[StoredLine] = []
        ids: set[str] = set()
        start, number = read_bytes, read_lines
        for raw in read_lines_of(file, start, self.line_bytes_max):
            start, number = raw.start + raw.length, number + raw.count
            if not raw.is_blank:
                found.append(self._checked(raw, number, ids))
            if len(found) >= limits.CHECK_LINES or start - read_bytes >= limits.CHECK_BYTES:
                return CheckedPart(tuple(found), start, number, is_last=False)
        return CheckedPart(tuple(found), start, number, is_last=True)

    def _checked(self, raw: RawLine, number: int, ids: set[str]) -> StoredLine:
        custom_id: str | None = None
        reply = None
        try:
            if raw.content is None:
                raise Refusal(
                    "request_too_large",
                    f"The line has {raw.length} bytes; the limit is {self.line_bytes_max}.",
                )
            fields = parse_line(raw.content, self.values_max)
            found = fields.get("custom_id")
            if isinstance(found, str) and len(found) <= limits.CUSTOM_ID_CHARACTERS_MAX:
                custom_id = found
            self._check_rest(check_line(fields, self.endpoint), ids)
        except Refusal as refusal:
            reply = self._refused(number, custom_id, refusal)
        if custom_id is not None:
            # Of a refused line too: a result with its id is that of one line.
            ids.add(custom_id)
        return StoredLine(
            number=number, start=raw.start, length=raw.length, custom_id=custom_id, reply=reply
        )

    def _refused(self, number: int, custom_id: str | None, refusal: Refusal) -> bytes:
        if self.endpoint == MESSAGES:
            return refused_message(custom_id, refusal, "")
        return refused_line(number, custom_id, refusal.code, refusal.message)

    def _check_rest(self, line: BatchLine | MessageLine, ids: set[str]) -> None:
        if line.custom_id in ids or self.is_taken(line.custom_id):
            raise Refusal("invalid_value", "An earlier line has the same custom_id.")
        if isinstance(line, MessageLine) or self.endpoint is None:
            return
        if line.url != self.endpoint:
            message = f"The url is {line.url}, and the batch is for {self.endpoint}."
            raise Refusal("invalid_value", message)


def check_line(fields: dict[str, Any], endpoint: str | None) -> BatchLine | MessageLine:
    """The line in this object, which is used up. Raises Refusal."""
    if endpoint == MESSAGES:
        return check_fields(fields, MessageLine)
    return check_fields(fields, BatchLine)


def parse_line(content: bytes, values_max: int) -> dict[str, object]:
    """The object on a line. Raises Refusal."""
    try:
        return parse_object(content, values_max)
    except Refusal as refusal:
        # The same reasons as for a body, of another thing.
        refusal.message = refusal.message.replace("The body", "The line", 1)
        raise


def read_lines_of(file: BufferedReader, start: int, bytes_max: int) -> Iterator[RawLine]:
    """The lines of a file from this position on."""
    file.seek(0)
    if start == 0 and file.read(len(_BOM)) == _BOM:
        start = len(_BOM)
    file.seek(start)
    while line := file.readline(bytes_max + 1):
        length = len(line)
        if line.isspace() and line.endswith(b"\n") and (blank := _skip_blank(file)):
            yield RawLine(start, length + len(blank), b"", 1 + blank.count(b"\n"))
            start += length + len(blank)
            continue
        if length <= bytes_max or line.endswith(b"\n"):
            yield RawLine(start, length, line)
        else:
            while not line.endswith(b"\n") and (line := file.readline(limits.READ_BYTES)):
                length += len(line)
            yield RawLine(start, length, None)
        start += length


def _skip_blank(file: BufferedReader) -> bytes:
    """Read the blank lines that come next, in one step: those that the file has at hand."""
    # A file of newlines would take a minute of Python for each hundred megabytes otherwise.
    near = file.peek()
    blank = near[: len(near) - len(near.lstrip())]
    return file.read(blank.rfind(b"\n") + 1)
