"""Headers that would take far longer to read than to send: refused before anything reads them."""

import json

import h11
import pytest

from jitney.server import limits
from tests.e2e.server.harness import Running

GET = b"GET /health HTTP/1.1\r\nHost: x\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
SPACES = b" " * 30_000


@pytest.fixture
def fed(monkeypatch: pytest.MonkeyPatch) -> bytearray:
    """All that h11 is given to read."""
    made = bytearray()
    receive_data = h11.Connection.receive_data

    def noted(connection: h11.Connection, data: bytes) -> None:
        made.extend(data)
        receive_data(connection, data)

    monkeypatch.setattr(h11.Connection, "receive_data", noted)
    return made


REFUSED = {
    "nul": (GET + b"X:" + SPACES[:2000] + b"\0\r\n\r\n", 400),
    "delete": (GET + b"X:" + SPACES[:2000] + b"\x7f\r\n\r\n", 400),
    "tab": (GET + b"X:" + SPACES[:2000] + b"\x0b\r\n\r\n", 400),
    "return": (GET + b"X:" + SPACES[:2000] + b"\rx\r\n\r\n", 400),
    "many": (GET + b"a:b\r\n" * (limits.HEADERS_MAX + 1) + b"\r\n", 431),
    "long": (GET + b"a:" + b"b" * limits.HEADER_BYTES_MAX + b"\r\n\r\n", 431),
    "address": (GET.replace(b" HTTP", b"a" * 12_000 + b" HTTP") + b"\r\n", 414),
    "longer address": (GET.replace(b" HTTP", b"a" * 100_000 + b" HTTP") + b"\r\n", 414),
    "tls": (b"\x16\x03\x01\x02\x00\x01", 400),
    "2.0": (GET.replace(b"1.1", b"2.0") + b"\r\n", 400),
    "1.2": (GET.replace(b"1.1", b"1.2") + b"\r\n", 400),
    "0.9": (GET.replace(b"1.1", b"0.9") + b"\r\n", 400),
    "folded": (GET + b"X: a\r\n b\r\n\r\n", 400),
    "folded by a tab": (GET + b"X: a\r\n\tb\r\n\r\n", 400),
    "folded chunked": (GET + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "folded to nothing": (GET + b"X: a\r\n \r\n\r\n", 400),
    "length twice in a line": (GET + b"Content-Length: 5, 5\r\n\r\nhello", 400),
    "length twice": (GET + b"Content-Length: 5\r\ncontent-length: 5\r\n\r\nhello", 400),
    "no length": (GET + b"Content-Length:\r\n\r\n", 400),
    "length and more": (GET + b"Content-Length: 5;\r\n\r\nhello", 400),
    "key of a megabyte": (GET + b"Authorization: Bearer " + b"x" * 10**6 + b"\r\n\r\n", 431),
}


@pytest.mark.parametrize(("content", "status"), REFUSED.values(), ids=REFUSED)
def test_rows_37_40_and_41_headers_that_are_refused_are_not_read(
    server: Running, fed: bytearray, content: bytes, status: int
) -> None:
    """Guards the event loop: 30 KB of spaces before a NUL kept h11 busy for 9 s. Guards proxies
    before us: h11 joins folded lines and equal lengths, and others refuse them."""
    answer = server.raw(content)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:100]
    assert b"connection: close" in answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert not fed


@pytest.mark.parametrize(
    "chunks",
    [
        b"1;" + SPACES + b"\nx\r\n",
        b"1;" + SPACES + b"\r\nx\r\n",
        b"0\r\nX:" + SPACES[:2000] + b"\0\r\n\r\n",
        b"0\r\n" + b"a:b\r\n" * 45_000 + b"\r\n",
    ],
    ids=["extension", "long extension", "trailer", "trailers"],
)
def test_lines_between_chunks_are_not_read_by_h11(
    server: Running, fed: bytearray, chunks: bytes
) -> None:
    """Guards the event loop behind the headers: it gets sizes of our own, and no trailers."""
    server.raw(CHUNKED.replace(b"Host", b"Connection: close\r\nHost") + chunks)
    assert fed.count(b" ") < 10
    assert fed.count(b"a:b") == 0


def test_a_bare_newline_is_seen_in_a_request_that_came_along(server: Running) -> None:
    """Guards proxies before us: the second of two requests is looked at like the first."""
    second = b"GET /health HTTP/1.1\r\nHost: x\nX: y\r\n\r\n"
    answer = server.raw(GET + b"\r\n" + second)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.count(b"HTTP/1.1 400 ") == 1


def test_as_many_headers_as_there_may_be(server: Running) -> None:
    """Guards honest clients at the bound."""
    count = limits.HEADERS_MAX - 2
    head = GET + b"Connection: close\r\n" + b"X: y\r\n" * count + b"\r\n"
    assert server.raw(head).startswith(b"HTTP/1.1 200 ")
