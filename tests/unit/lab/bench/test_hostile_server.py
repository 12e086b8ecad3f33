"""Servers that answer without end, slowly, wrongly, or to the terminal; over real sockets."""

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

import pytest

from jitney.errors import SetupError
from jitney_lab.bench import http_target
from jitney_lab.bench.http_target import HttpTarget, served_model
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job

WAIT_S = 60
ENDLESS_BYTES = 2**27
"""Where an endless body ends here, so that a client without a bound fails and does not hang."""

JOB = Job(number=0, prompt_count=3, completion_count=4)
LIST = json.dumps({"object": "list", "data": [{"id": "first"}, {"id": "second"}]}).encode()
TEXT = b'data: {"choices": [{"text": "a"}]}\n\n'


@contextmanager
def listening(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that answers in this way, on a thread; its address. The listener has a limit."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        thread = threading.Thread(target=answer, args=(listener,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            # A client that gave up early may never have come.
            socket.create_connection(listener.getsockname()).close()
            thread.join(WAIT_S)


@contextmanager
def serving(pieces: Iterable[bytes], status: str = "200 OK") -> Iterator[str]:
    """A server for one request, which gets these pieces; its address."""

    def answer(listener: socket.socket) -> None:
        # A client that has read enough closes the connection.
        with suppress(OSError), listener.accept()[0] as connection:
            connection.settimeout(WAIT_S)
            read_request(connection)
            head = f"HTTP/1.1 {status}\r\nconnection: close\r\n\r\n".encode()
            for piece in itertools.chain((head,), pieces):
                connection.sendall(piece)

    with listening(answer) as address:
        yield address


def read_request(connection: socket.socket) -> None:
    """Read all of it: the end of a connection with unread bytes takes the answer away."""
    with connection.makefile("rb") as lines:
        length = 0
        while (line := lines.readline()).strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        lines.read(length)


def endless(piece: bytes) -> Iterator[bytes]:
    block = piece * (2**16 // len(piece))
    return itertools.repeat(block, ENDLESS_BYTES // len(block))


def refused(pieces: Iterable[bytes], status: str = "200 OK", key: str | None = None) -> str:
    """What is said of a list of models that cannot be used."""
    with serving(pieces, status) as address, pytest.raises(SetupError) as caught:
        served_model(address, key)
    return str(caught.value)


def ask(address: str, count: int = 1) -> list[RequestTimes]:
    """So many requests of one client, one after the other."""

    async def run() -> list[RequestTimes]:
        target = HttpTarget(base_url=address, model="m", seed=1)
        async with target.client() as client:
            return [await target.ask(client, JOB) for _ in range(count)]

    return asyncio.run(run())


def error_of(pieces: Iterable[bytes], status: str = "200 OK") -> str | None:
    """What went wrong with a request that is answered with these pieces."""
    with serving(pieces, status) as address:
        return ask(address)[0].error


def test_the_first_model_is_taken() -> None:
    with serving([LIST]) as address:
        assert served_model(address, None) == "first"


def test_a_list_of_models_without_end_is_not_read_to_its_end() -> None:
    """Guards memory: it grew by gigabytes in seconds."""
    assert "it has above 16,777,216 bytes" in refused(endless(b" "))
    assert "(status 500: no no no" in refused(endless(b"no "), "500 No")


def test_a_list_of_models_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the start: every byte came in time, and the list never ended."""
    monkeypatch.setattr(http_target, "MODELS_S", 0.2)
    pause = threading.Event()

    def drip() -> Iterator[bytes]:
        for _ in range(200):
            pause.wait(0.05)
            yield b" "
        yield LIST

    assert "it was not complete after 0.2 s" in refused(drip())


@pytest.mark.parametrize("piece", [TEXT, b": ping\n\n", b'data: {"choices": []}\n\n', b"text\n"])
def test_an_answer_without_end_is_a_failure(piece: bytes) -> None:
    """Guards memory and the run: each line is short, and there is always another."""
    assert "the answer has above" in str(error_of(endless(piece)))


def test_words_of_a_server_do_not_reach_the_terminal_as_commands() -> None:
    """Guards the terminal against colours, titles and lines of a stranger."""
    words = b"\x1b[31mred\x1b]0;title\x07\r\nnext \xe2\x80\xae line"
    shown = "[31mred]0;title next line"
    assert error_of([words], "500 No") == f"status 500: {shown}"
    event = b'data: {"error": "\\u001b[31mred"}\n\n'
    assert error_of([event]) == "the server says: [31mred"
    assert f"(status 500: {shown})" in refused([words], "500 No")
    assert "whose name cannot be shown" in refused([b'{"data": [{"id": "a\\u001b[31m"}]}'])


def test_a_list_of_models_that_is_refused_says_why_and_what_to_do() -> None:
    sentence = refused([b'{"error": "who are you?"}'], "401 Unauthorized")
    assert 'status 401: {"error": "who are you?"}' in sentence
    assert "--api-key" in sentence
    assert "mozilla" not in sentence
    with_key = refused([b"not sk-123"], "403 Forbidden", key="sk-123")
    assert "status 403: not [key]" in with_key
    assert "--api-key" not in with_key
    assert "or name one with --model" in refused([b"?"], "404 Not Found").lower()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"data": []}', "lists no model; name one with --model"),
        (b"<html>", "gave no list of models"),
        (b"[" * 10_000, "gave no list of models"),
        (b'{"data": [{}]}', "gave no list of models"),
        (b"", "gave no list of models"),
    ],
)
def test_a_strange_list_of_models_gets_a_sentence(body: bytes, words: str) -> None:
    assert words in refused([body])


ANSWER = TEXT + b"data: [DONE]\n\n"
KEPT = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(ANSWER), ANSWER)


@contextmanager
def closing(connections: Iterable[int]) -> Iterator[str]:
    """A server that closes each connection at the request after so many answers; its address."""

    def answer(listener: socket.socket) -> None:
        for count in connections:
            with listener.accept()[0] as connection:
                connection.settimeout(WAIT_S)
                for _ in range(count):
                    read_request(connection)
                    connection.sendall(KEPT)
                read_request(connection)

    with listening(answer) as address:
        yield address


def errors_of(connections: Iterable[int], count: int) -> list[str | None]:
    """What went wrong with each of so many requests of one client."""
    with closing(connections) as address:
        return [each.error for each in ask(address, count)]


def test_a_request_that_meets_the_end_of_a_used_connection_is_sent_again() -> None:
    """Guards runs on llama-server, which closes connections after an answer now and then."""
    assert errors_of([1, 2], count=3) == [None, None, None]


def test_a_request_that_ends_a_new_connection_has_failed() -> None:
    (error,) = errors_of([0], count=1)
    assert "disconnected without sending a response" in str(error)
