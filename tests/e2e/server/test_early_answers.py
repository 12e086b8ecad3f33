"""Answers before the body is there are read, and the connection ends; many who come at once."""

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import Iterator

import h11
import pytest

from jitney.config import Key
from jitney.server import limits
from jitney.server.http.connections import Rounds
from jitney.server.http.protocol import GuardedProtocol
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import (
    WAIT_S,
    Running,
    World,
    read_all,
    request_bytes,
    running,
    wait_until,
)

BODY = {"prompt": "a", "max_tokens": 1}
POST = (
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer the-secret\r\n"
)
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
LONG_S = 3600.0
"""Time to send a body, for a client that may have to wait for its own turn."""
NO_KEY = CHUNKED.replace(b"the-secret", b"another")


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    """A server that wants a key."""
    keys = (Key(name="one", secret="the-secret"),)
    with running(World(keys=keys)) as made:
        yield made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever h11 is asked for an event."""
    made: list[int] = []
    next_event = h11.Connection.next_event

    def noted(connection: h11.Connection) -> object:
        made.append(1)
        return next_event(connection)

    monkeypatch.setattr(h11.Connection, "next_event", noted)
    return made


def open_count(server: Running) -> int:
    """Connections that are there."""
    made = server.lifecycle._server
    assert made is not None
    return len(made.server_state.connections)


def send_on(connection: socket.socket, content: bytes) -> None:
    """Send what the other side may not want."""
    with contextlib.suppress(OSError):
        connection.sendall(content)


def test_a_body_behind_a_refusal_is_not_read(locked: Running, reads: list[int]) -> None:
    """Guards everybody else: whoever has no key can make nobody parse."""
    with locked.connect() as connection:
        connection.sendall(NO_KEY)
        assert connection.recv(65_536).startswith(b"HTTP/1.1 401 ")
        count = len(reads)
        send_on(connection, b"1\r\nx\r\n" * 50_000)
        assert locked.get("/health").status_code == 200
        assert len(reads) - count < 20
        read_all(connection)
    locked.check_idle()


@pytest.mark.parametrize("path", [b"/v1/completions", b"/nowhere", b"/health", b"/v1/models"])
def test_bytes_do_not_keep_a_connection_that_was_answered(
    locked: Running, monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    """Guards connections: one more byte of a body is no reason to live on."""
    monkeypatch.setattr(limits, "LINGER_S_MAX", 0.2)
    with locked.connect() as connection:
        connection.sendall(NO_KEY.replace(b"/v1/completions", path))
        answer = connection.recv(65_536)
        assert b"connection: close" in answer
        send_on(connection, b"1\r\nx\r\n1")
        wait_until(lambda: open_count(locked) == 0, "it lives on")
    locked.check_idle()


def test_an_early_answer_reaches_whoever_sends_first_and_reads_then(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the answer: closed while the other side sends, a connection may lose it."""
    monkeypatch.setattr(limits, "LINGER_S_MAX", LONG_S)
    content = json.dumps({"prompt": "a" * 3_000_000}).encode()
    for head in (NO_KEY, NO_KEY.replace(b"Host", b"Connection: close\r\nHost")):
        with locked.connect() as connection:
            connection.sendall(head + b"%x\r\n" % len(content) + content + b"\r\n0\r\n\r\n")
            assert read_all(connection).startswith(b"HTTP/1.1 401 ")


def test_a_short_body_after_its_refusal_costs_no_connection(
    locked: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards clients under load: most send headers and body one after the other."""
    monkeypatch.setattr(limits, "LINGER_S_MAX", LONG_S)
    content = request_bytes("/v1/completions", BODY, close=False)
    head, _, body = content.partition(b"\r\n\r\n")
    with locked.connect() as connection:
        for _ in range(3):
            connection.sendall(head + b"\r\n\r\n")
            answer = connection.recv(65_536)
            assert answer.startswith(b"HTTP/1.1 401 ")
            assert b"connection: close" not in answer
            connection.sendall(body)


def test_who_waits_to_be_asked_for_a_body_is_answered_and_closed(locked: Running) -> None:
    """Guards `Expect: 100-continue`: refused without the body, which then may come or not."""
    head = POST.replace(b"the-secret", b"another") + b"Content-Length: 10\r\n"
    with locked.connect() as connection:
        connection.sendall(head + b"Expect: 100-continue\r\n\r\n")
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer
    content = request_bytes("/v1/completions", BODY, "Authorization: Bearer the-secret")
    head, _, body = content.partition(b"\r\n\r\n")
    with locked.connect() as connection:
        connection.sendall(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 100 ")
        connection.sendall(body)
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")


def test_who_asks_first_and_sends_nonsense_at_once(
    locked: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the log: the request was refused before its body was asked for, which is no error."""
    answer = locked.raw(CHUNKED.replace(b"Host", b"Expect: 100-continue\r\nHost") + b"zz\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    locked.check_idle()
    assert not [each for each in caplog.records if each.exc_info]


def test_a_body_in_more_chunks_than_anyone_sends(locked: Running, reads: list[int]) -> None:
    """Guards the event loop, with a key too: many small chunks are few events, up to a bound."""
    with locked.connect() as connection:
        send_on(connection, CHUNKED + b"1\r\n \r\n" * (2 * limits.CHUNKS_MAX))
        answer = read_all(connection)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"too_many_chunks" in answer
    assert len(reads) < 1000
    locked.check_idle()


def test_chunks_are_read_in_many_rounds(locked: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards those who stream: between two portions of one body the event loop has its turn. Guards
    the stack and the clock (row 42): 20,000 chunks of one byte are one body."""
    counts: list[int] = []
    take = Rounds.take

    def noted(rounds: Rounds, steps: int) -> None:
        counts.append(steps)
        take(rounds, steps)

    monkeypatch.setattr(Rounds, "take", noted)
    content = json.dumps(BODY).encode() + b" " * 20_000
    chunks = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in content)
    head = CHUNKED.replace(b"Host", b"Connection: close\r\nHost")
    assert locked.raw(head + chunks + b"0\r\n\r\n").startswith(b"HTTP/1.1 200 ")
    assert max(counts) <= 1 + limits.CHUNKS_PER_PIECE // limits.CHUNKS_PER_STEP
    assert sum(counts) >= len(content) // limits.CHUNKS_PER_STEP


def test_a_crowd_of_tiny_chunks_keeps_nobody_from_being_answered(locked: Running) -> None:
    """Guards everybody else: several send without end, and others are served in between."""
    is_over = threading.Event()

    def send() -> None:
        while not is_over.is_set():
            with locked.connect() as connection:
                send_on(connection, CHUNKED + b"1\r\n \r\n" * (2 * limits.CHUNKS_MAX))
                read_all(connection)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        for _ in range(5):
            assert locked.get("/health").status_code == 200
    finally:
        is_over.set()
        for each in threads:
            each.join(WAIT_S)
    locked.check_idle()


COUNT = 2 * limits.ACCEPTS_PER_ROUND


def test_newcomers_are_taken_many_at_a_time(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards newcomers: one for each round of the loop would be seconds for the last of them."""
    connection_made = GuardedProtocol.connection_made
    all_came = threading.Event()
    rounds = 0
    made_in: list[int] = []

    def count_round() -> None:
        nonlocal rounds
        rounds += 1
        if len(made_in) < COUNT:
            asyncio.get_running_loop().call_soon(count_round)

    def noted(protocol: GuardedProtocol, transport: asyncio.Transport) -> None:
        if not made_in:
            assert all_came.wait(WAIT_S)  # the loop stands still meanwhile, as if it were busy
            count_round()
        made_in.append(rounds)
        connection_made(protocol, transport)

    monkeypatch.setattr(GuardedProtocol, "connection_made", noted)
    server = start(World())
    with contextlib.ExitStack() as stack:
        for _ in range(COUNT):
            stack.enter_context(server.connect())
        all_came.set()
        wait_until(lambda: len(made_in) == COUNT, "somebody was not let in")
    assert made_in[-1] - made_in[0] <= COUNT // 8
