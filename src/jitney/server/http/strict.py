"""Checks what a connection sends before h11 reads it: `StrictConnection`. Event loop.

h11 gets whole headers, so the time it needs follows from their length. It gets pieces of bodies
with checked chunks, and nothing after the end of a request. Bytes with two possible meanings are
refused, and so are bytes that take far longer to read than to send.

`ChunkedBody` reads the chunks of one body. Each takes about a microsecond, a tenth of h11's time,
and the time for a line is proportional to its length. Extensions and trailers are skipped: nobody
needs them.

Tests: tests/unit/server/http/test_strict.py, test_states.py and
tests/e2e/server/test_hostile_heads.py.
"""

import re

import h11

from jitney.server import limits
from jitney.server.error_object import Refusal
from jitney.server.http.connections import Rounds

_SIZE = re.compile(rb"([0-9A-Fa-f]++)(?:[ \t]*;[^\r\n\0]*)?")
_DIGITS_MAX = 15
"""Not more than fit a machine's word."""

_HEAD_BYTES = bytes(set(range(256)) - {0x00, 0x0B, 0x0C, 0x7F})
"""Bytes that headers may contain. h11 refuses the others as well, but slowly: its pattern tries
each run of spaces in every way, and 30 KB took 9 s."""

_VERSIONS = (b" HTTP/1.1", b" HTTP/1.0")
"""h11 reads all others as one of these."""

_FOLDS = (b"\r\n ", b"\r\n\t")
_LENGTH = re.compile(rb"\r\ncontent-length:([^\r]*)", re.IGNORECASE)
"""h11 joins folded lines and equal lengths. A proxy before us may read them otherwise."""

_LINE_BYTES = 64
"""Room for the method and the version in the first line."""

HttpEvent = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


def are_lines(text: bytearray) -> bool:
    """Whether every line ends with CR and LF, which all readers understand in the same way."""
    # A CR at the very end may be half of a line end.
    returns = text.count(b"\r") - text.endswith(b"\r")
    return text.count(b"\n") == returns == text.count(b"\r\n")


class ChunkedBody:
    """What was seen of one chunked body: how many chunks, and whether that was all."""

    def __init__(self) -> None:
        self.count = 0
        self.is_over = False
        self._left = 0
        """Of the chunk that is being read."""
        self._is_between = False
        """Whether the end of a chunk's line comes next."""
        self._is_last = False

    def take(self, held: bytearray) -> bytes:
        """Take complete chunks from the held bytes, up to a bound, and return their content.

        Raises Refusal.
        """
        assert not self.is_over, "The body has ended"
        parts: list[bytes] = []
        start, count_max = 0, self.count + limits.CHUNKS_PER_PIECE
        while start < len(held) and self.count < count_max and not self._is_last:
            if self._left:
                part = bytes(held[start : start + min(self._left, limits.PIECE_BYTES_MAX)])
                parts.append(part)
                start += len(part)
                self._left -= len(part)
                self._is_between = self._left == 0
                if len(part) == limits.PIECE_BYTES_MAX:
                    break
                continue
            read = self._read_line(held, start)
            if read == start:
                break
            start = read
        del held[:start]
        if self._is_last:
            self._end(held)
        return b"".join(parts)

    def _read_line(self, held: bytearray, start: int) -> int:
        """The position after the next size line; `start` if the line is not complete yet."""
        if self._is_between:
            ending = held[start : start + 2]
            if ending != b"\r\n"[: len(ending)]:
                raise _no_http("A chunk is longer than it says.")
            if len(ending) < 2:
                return start
            start += 2
        end = held.find(b"\r\n", start, start + limits.CHUNK_LINE_BYTES_MAX)
        if end < 0:
            if len(held) - start >= limits.CHUNK_LINE_BYTES_MAX:
                raise _no_http("The line before a chunk is too long.")
            if not are_lines(held[start:]):
                # What is half a line here would never be a whole one.
                raise _no_http("The line before a chunk does not end as a line of HTTP.")
            return start - 2 if self._is_between else start
        found = _SIZE.fullmatch(held, start, end)
        if found is None:
            raise _no_http("The size of a chunk is not a number.")
        if len(found[1]) > _DIGITS_MAX:
            raise _no_http(f"The size of a chunk is too large: over {_DIGITS_MAX} digits.")
        self.count += 1
        self._left = int(found[1], 16)
        self._is_last = self._left == 0
        self._is_between = False
        return end + 2

    def _end(self, held: bytearray) -> None:
        """Skip the trailers, and find the end."""
        if held[:2] == b"\r\n":
            del held[:2]
            self.is_over = True
            return
        end = held.find(b"\r\n\r\n", 0, limits.TRAILER_BYTES_MAX)
        if not are_lines(held[: end + 4] if end >= 0 else held[: limits.TRAILER_BYTES_MAX]):
            raise _no_http("The lines after the last chunk do not end as lines of HTTP.")
        if end >= 0:
            del held[: end + 4]
            self.is_over = True
        elif len(held) >= limits.TRAILER_BYTES_MAX:
            raise _no_http("There is too much after the last chunk.")


class StrictConnection(h11.Connection):
    """h11's state of one connection. A subclass, because uvicorn asks it for events."""

    def __init__(self, rounds: Rounds) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=2 * limits.HEADER_BYTES_MAX)
        self.refusal = _no_http("The request is not valid HTTP.")
        """The error when the request cannot be read."""
        self.is_behind = False
        """Whether there may be more to read, in the next round."""
        self.is_short = True
        """Whether the rest of the body is short and certain to come, so that we read it."""
        self.held = bytearray()
        """What has come and is not read yet."""
        self._rounds = rounds
        self._steps_left = 0
        self._head_bytes = 0
        self._chunks: ChunkedBody | None = None
        self._body_bytes = 0
        self._length_left = 0

    @property
    def has_begun(self) -> bool:
        """Whether anything was read of this share."""
        return self._steps_left < limits.STEPS_PER_SHARE

    def receive_data(self, data: bytes) -> None:
        """Keep what has come until it is read."""
        self.held += data

    def begin(self) -> None:
        """From here on, a share of this round is read."""
        self.is_behind = False
        self._steps_left = limits.STEPS_PER_SHARE

    def next_event(self) -> HttpEvent:
        """What comes next. Raises h11.RemoteProtocolError; `refusal` says why."""
        if self._rounds.is_over or self._steps_left <= 0:
            self.is_behind = True
            return h11.NEED_DATA
        steps = 1
        if self.their_state is h11.IDLE:
            is_fed = self._feed_head()
        elif self.their_state is h11.SEND_BODY:
            before = 0 if self._chunks is None else self._chunks.count
            is_fed = self._feed_body()
            if self._chunks is not None:
                steps += (self._chunks.count - before) // limits.CHUNKS_PER_STEP
        else:
            return super().next_event()
        event: HttpEvent = super().next_event() if is_fed else h11.NEED_DATA
        if isinstance(event, h11.Request):
            self._note(event)
            steps += limits.STEPS_PER_REQUEST
            steps += self._head_bytes // limits.HEADER_BYTES_PER_STEP
        self._steps_left -= steps
        self._rounds.take(steps)
        return event

    def _note(self, request: h11.Request) -> None:
        """Note what the headers say about the body."""
        headers = dict(request.headers)
        self._chunks = ChunkedBody() if b"transfer-encoding" in headers else None
        self._body_bytes = 0
        self._length_left = 0
        if self._chunks is None:
            self._length_left = int(headers.get(b"content-length", b"0"))
        # A client that expects `100 Continue` may send nothing after another response.
        is_known = self._chunks is None and b"expect" not in headers
        self.is_short = is_known and self._length_left <= limits.REST_BYTES_MAX

    def _feed_head(self) -> bool:
        """Give h11 the headers when they are whole."""
        held = self.held
        if not held:
            return False
        end = held.find(b"\r\n\r\n", 0, limits.HEADER_BYTES_MAX)
        head = held[: end + 4] if end >= 0 else held[: limits.HEADER_BYTES_MAX]
        if head[0] < 0x21 or not are_lines(head):
            raise self._refused(self.refusal)
        is_long = end < 0 and len(held) >= limits.HEADER_BYTES_MAX
        line_end = head.find(b"\r\n")
        # A line that is too long is refused before its end.
        if (line_end if line_end >= 0 else len(head)) > limits.ADDRESS_BYTES_MAX + _LINE_BYTES:
            raise self._refused(Refusal("uri_too_long", "The address is too long."))
        is_wide = head.count(b"\n") - 2 > limits.HEADERS_MAX
        if is_long or is_wide or head.count(b",") > limits.HEADER_COMMAS_MAX:
            message = "The headers are too many or too long."
            raise self._refused(Refusal("headers_too_large", message))
        if end < 0:
            return False
        if head.translate(None, _HEAD_BYTES):
            raise self._refused(self.refusal)
        if not head[:line_end].endswith(_VERSIONS):
            raise self._refused(_no_http("A request's first line ends in HTTP/1.1 or HTTP/1.0."))
        if any(fold in head for fold in _FOLDS):
            raise self._refused(_no_http("A header goes on in a second line; send it as one line."))
        lengths = [each.strip(b" \t") for each in _LENGTH.findall(head)]
        if len(lengths) > 1 or not all(map(bytes.isdigit, lengths)):
            raise self._refused(_no_http("A request has one Content-Length, which is one number."))
        super().receive_data(bytes(head))
        self._head_bytes = len(head)
        del held[: end + 4]
        return True

    def _feed_body(self) -> bool:
        """Give h11 a piece of the body, or its end."""
        if self._chunks is not None:
            return self._feed_chunks(self._chunks)
        if self._length_left == 0:
            return True
        piece = bytes(self.held[: min(self._length_left, limits.PIECE_BYTES_MAX)])
        if not piece:
            return False
        super().receive_data(piece)
        del self.held[: len(piece)]
        self._length_left -= len(piece)
        return True

    def _feed_chunks(self, chunks: ChunkedBody) -> bool:
        if chunks.is_over:
            return True
        try:
            piece = chunks.take(self.held)
        except Refusal as refusal:
            raise self._refused(refusal) from None
        self._body_bytes += len(piece)
        room = limits.CHUNKS_MAX + self._body_bytes // limits.CHUNK_BYTES_USUAL
        if chunks.count > room:
            message = "The body comes in too many small chunks; send larger ones, or its length."
            raise self._refused(Refusal("too_many_chunks", message))
        if piece:
            super().receive_data(b"%x\r\n%b\r\n" % (len(piece), piece))
        if chunks.is_over:
            super().receive_data(b"0\r\n\r\n")
        return bool(piece) or chunks.is_over

    def _refused(self, refusal: Refusal) -> h11.RemoteProtocolError:
        self.refusal = refusal
        return h11.RemoteProtocolError(refusal.message)


def _no_http(message: str) -> Refusal:
    return Refusal("invalid_http", message)
