"""Tests of `jitney.server.http.strict`: bodies in parts, however they are cut."""

from itertools import pairwise

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.server import limits
from jitney.server.error_object import Refusal
from jitney.server.http.strict import ChunkedBody

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
EXTENSIONS = st.sampled_from([b"", b";a", b" ; a=b", b';a="b c"'])
TRAILERS = st.sampled_from([b"", b"X: a\r\n", b"X: a\r\nY:\r\n"])


def written(parts: list[bytes], extension: bytes = b"", trailer: bytes = b"") -> bytes:
    """A chunked body as it goes over the wire."""
    lines = [b"%x%b\r\n%b\r\n" % (len(part), extension, part) for part in parts if part]
    return b"".join(lines) + b"0" + extension + b"\r\n" + trailer + b"\r\n"


def read(chunks: ChunkedBody, pieces: list[bytes]) -> tuple[bytes, bytes]:
    """The body in these pieces, and what is left behind its end."""
    held, body = bytearray(), b""
    for piece in pieces:
        held += piece
        before = -1
        while not chunks.is_over and before != len(held):
            before = len(held)
            body += chunks.take(held)
    return body, bytes(held)


def read_by_h11(content: bytes) -> bytes | None:
    """The same by h11; None when it refuses it or waits for more."""
    connection, body = h11.Connection(h11.SERVER), b""
    connection.receive_data(HEAD + content)
    try:
        while not isinstance(event := connection.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                return None
            body += bytes(event.data) if isinstance(event, h11.Data) else b""
    except h11.RemoteProtocolError:
        return None
    return body


@given(st.lists(st.binary(max_size=40)), EXTENSIONS, TRAILERS, st.lists(st.integers(0, 200)))
def test_a_body_is_the_same_wherever_it_is_cut(
    parts: list[bytes], extension: bytes, trailer: bytes, cuts: list[int]
) -> None:
    """Guards honest bodies, and where they end: what comes behind is another request's."""
    content = written(parts, extension, trailer) + b"GET"
    places = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    pieces = [content[a:b] for a, b in pairwise(places)]
    assert read(ChunkedBody(), pieces) == (b"".join(parts), b"GET")


@given(
    st.lists(st.sampled_from([b"1", b"a", b"0", b"\r\n", b"\n", b"\r", b";", b" ", b"x", b"\0"]))
)
def test_what_is_read_is_what_h11_reads(words: list[bytes]) -> None:
    """Guards proxies before us: nothing is understood that a second reader refuses."""
    content, chunks = b"".join(words), ChunkedBody()
    try:
        body, _ = read(chunks, [content])
    except Refusal:
        return
    if chunks.is_over:
        assert read_by_h11(content) == body


@pytest.mark.parametrize(
    "content",
    [
        b"zz\r\n",
        b"\r\n",
        b"-1\r\nx",
        b"+1\r\nx",
        b"0x1\r\nx",
        b"1_0\r\nx",
        b" 1\r\nx",
        b"1 \r\nx",
        b"1\nx\r\n",
        b"1;a\nb\r\nx\r\n",
        b"1\n",
        b"1;a\n",
        b"1\rx",
        b"1\r\nx\r\n0\n\n",
        b"1;\0\r\nx\r\n",
        b"1\r\nxy\r\n",
        b"1\r\nx\n0\r\n",
        b"f" * 16 + b"\r\n",
        b"1;" + b" " * limits.CHUNK_LINE_BYTES_MAX,
        b"0\r\nX: a\n\n",
        b"0\r\nX: a\rb\r\n\r\n",
        b"0\r\n" + b"X: a\r\n" * limits.TRAILER_BYTES_MAX,
    ],
)
def test_what_is_no_chunk_is_refused(content: bytes) -> None:
    """Guards the end of a request: what has two meanings has none, however it is cut."""
    for pieces in ([content], [content[at : at + 1] for at in range(len(content))]):
        with pytest.raises(Refusal):
            read(ChunkedBody(), pieces)


@pytest.mark.parametrize(("size", "told"), [(b"F" * 17, "too large"), (b"1g", "not a number")])
def test_a_size_is_told_apart_from_what_is_none(size: bytes, told: str) -> None:
    """Guards the sentence: many digits are a number, and too large a one."""
    with pytest.raises(Refusal, match=told):
        ChunkedBody().take(bytearray(size + b"\r\n"))


def test_little_is_read_at_a_time() -> None:
    """Guards the event loop: single bytes come in portions, and so does a chunk of any size."""
    chunks, held = ChunkedBody(), bytearray(b"1\r\nx\r\n" * 1000)
    assert len(chunks.take(held)) <= limits.CHUNKS_PER_PIECE
    assert chunks.count == limits.CHUNKS_PER_PIECE
    chunks, held = ChunkedBody(), bytearray(b"fffff\r\n" + b"x" * 0xFFFFF)
    assert len(chunks.take(held)) == limits.PIECE_BYTES_MAX
