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

from benchmarks.http.wire import DONE, HOST, Json

LOOK_S = 0.002
"""Between two looks: a tick's events are there at once, as they would be behind a network."""

_LAST_CHUNK = b"\r\n0\r\n\r\n"
_PIECE_BYTES = 65_536


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
        """Keep what came; whether a reply is whole."""
        piece = self.connection.recv(_PIECE_BYTES)
        if not piece:
            raise EOFError("the stream ended in the middle")
        self.current += piece
        if not self.current.endswith(_LAST_CHUNK):
            return False
        self.replies.append(bytes(self.current))
        self.current.clear()
        return True


def call_all(port: int, path: str, bodies: list[list[Json]]) -> float:
    """Each list from a caller of its own, one body after the other; seconds until all have all.

    Every reply is to be a stream that ran to its length.
    """
    callers = [
        _Caller(socket.create_connection((HOST, port)), [_request(path, body) for body in theirs])
        for theirs in bodies
    ]
    seconds = _run(callers)
    for caller in callers:
        caller.connection.close()
        for reply in caller.replies:
            _check(reply)
    assert [len(each.replies) for each in callers] == [len(theirs) for theirs in bodies]
    return seconds


def _run(callers: list[_Caller]) -> float:
    started = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for caller in callers:
            if caller.go_on():
                selector.register(caller.connection, selectors.EVENT_READ, caller)
        while selector.get_map():
            for key, _ in selector.select():
                caller = key.data
                if caller.take() and not caller.go_on():
                    selector.unregister(caller.connection)
            time.sleep(LOOK_S)
    return time.perf_counter() - started


def _request(path: str, body: Json) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def _check(reply: bytes) -> None:
    assert reply.startswith(b"HTTP/1.1 200 "), reply[:200]
    events = [part.split(b"\n\n")[0] for part in reply.split(b"data: ")[1:]]
    assert events[-1] == DONE, events[-1]
    assert json.loads(events[-2])["choices"][0]["finish_reason"] == "length", events[-2]
