"""Attacks by the bytes of a head, of chunks and of trailers; none needs a key."""

from benchmarks.http.hostile.attack import Attack, Run, Target, crowd
from benchmarks.http.wire import HOST

_GET = f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n".encode()
_CHUNKED = (
    f"POST /v1/completions HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
    "Transfer-Encoding: chunked\r\n\r\n"
).encode()
_SPACES = b" " * 30_000

HEADS = {
    "head-spaces": (
        "30,000 spaces in a header, which end in what no header may hold",
        _GET + b"X:" + _SPACES + b"\0\r\n\r\n",
    ),
    "chunk-extension": (
        "30,000 spaces behind the size of a chunk",
        _CHUNKED + b"1;" + _SPACES + b"\nx\r\n",
    ),
    "trailer-spaces": (
        "30,000 spaces in a trailer",
        _CHUNKED + b"0\r\nX:" + _SPACES + b"\0\r\n\r\n",
    ),
    "head-commas": (
        "16 KB of commas in headers that are lists",
        _GET + (b"Connection: " + b"," * 240 + b"x\r\n") * 60 + b"\r\n",
    ),
    "head-long": ("16 KB of one header", _GET + b"X:" + b" a" * 8000 + b"\r\n\r\n"),
    "other-versions": ("HTTP/9.9", _GET.replace(b"1.1", b"9.9") + b"\r\n"),
    "tiny-headers": ("45,000 headers of one letter", _GET + b"a:b\r\n" * 45_000 + b"\r\n"),
    "tiny-trailers": (
        "45,000 trailers of one letter",
        _CHUNKED + b"0\r\n" + b"a:b\r\n" * 45_000 + b"\r\n",
    ),
}


def _sends(content: bytes) -> Run:
    async def run(target: Target) -> None:
        """These bytes, from four at once."""
        await crowd(4, lambda number: target.send(content))

    return run


ATTACKS = tuple(
    Attack(name=name, text=text, run=_sends(content), needs_key=False)
    for name, (text, content) in HEADS.items()
)
