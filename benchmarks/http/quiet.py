"""Callers that take next to nothing of the machine: plain sockets, looked at now and then.

The clients of a server are elsewhere. Here they share its cores, so that a client that wakes up
for every event would be counted as a cost of the server's. These only keep what comes; it is
looked at when the clock has stopped.
"""

import json
import selectors
import socket
import time
from dataclasses import dataclass, field

from benchmarks.http.wire import DONE, HOST, LAST_CHUNK, PIECE_BYTES, Json, events_of, request_bytes

LOOK_S = 0.002
"""Between two looks: long enough for all events of a tick to be there, short beside a tick."""

REPLY_S_MAX = 60.0
_WELL = b"HTTP/1.1 200 "


@dataclass(slots=True)
class _Caller:
    """One connection, and the requests that it sends one after the other."""

    connection: socket.socket
    requests: list[bytes]
    current: bytearray = field(default_factory=bytearray)
    replies: list[bytes] = field(default_factory=list)

    def go_on(self) -> bool:
        """Send the next request; whether there was one."""
        if not self.requests:
            return False
        self.connection.sendall(self.requests.pop(0))
        return True

    def take(self) -> bool:
        """Keep what came; whether a reply is whole. Raises RuntimeError for a refusal."""
        piece = self.connection.recv(PIECE_BYTES)
        self.current += piece
        if not piece or not self.current.startswith(_WELL):
            raise RuntimeError(f"no stream, or the end of it: {bytes(self.current[-400:])!r}")
        if not self.current.endswith(LAST_CHUNK):
            return False
        self.replies.append(bytes(self.current))
        self.current.clear()
        return True


def call_all(port: int, path: str, bodies: list[list[Json]]) -> float:
    """Each list from a caller of its own, one body after the other; seconds until all have all.

    Every reply is to be a stream of as many tokens as were asked for.
    """
    callers = [
        _Caller(socket.create_connection((HOST, port)), [_request(path, body) for body in theirs])
        for theirs in bodies
    ]
    try:
        seconds = _run(callers)
    finally:
        for caller in callers:
            caller.connection.close()
    for caller, theirs in zip(callers, bodies, strict=True):
        for reply, body in zip(caller.replies, theirs, strict=True):
            _check(reply, body["max_tokens"])
    return seconds


def _run(callers: list[_Caller]) -> float:
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for caller in callers:
            if caller.go_on():
                selector.register(caller.connection, selectors.EVENT_READ, caller)
        while selector.get_map():
            ready = selector.select(REPLY_S_MAX)
            if not ready:
                raise TimeoutError(f"nothing came for {REPLY_S_MAX:g} s")
            for key, _ in ready:
                caller = key.data
                if caller.take() and not caller.go_on():
                    selector.unregister(caller.connection)
            time.sleep(LOOK_S)
    return time.perf_counter() - started


def _request(path: str, body: Json) -> bytes:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    return request_bytes(f"POST {path} HTTP/1.1", json.dumps(asked).encode())


def _check(reply: bytes, token_count: int) -> None:
    *_, last, done = events_of(reply.partition(b"\r\n\r\n")[2])
    assert done == DONE, done
    assert json.loads(last)["usage"]["completion_tokens"] == token_count, last
