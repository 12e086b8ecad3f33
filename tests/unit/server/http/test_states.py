"""Every state of a connection has an end that no byte puts off: a transport and timers of ours."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from jitney.server import limits
from jitney.server.http.connections import Rounds
from jitney.server.http.protocol import ConnectionState
from tests.unit.server.http.connection_for_tests import Connection

POST = b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
CHUNKED = b"POST /now HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNKED_LATE = CHUNKED.replace(b"/now", b"/late")
LONG = limits.REST_BYTES_MAX + 1
pytestmark = pytest.mark.anyio


class Timer:
    """One timer; `end` is the moment that it waits for."""

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds = seconds
        self.end = callback
        self.is_on = True

    def cancel(self) -> None:
        self.is_on = False


class Loop:
    """The running loop, with timers that only a test ends."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []
        self._loop = asyncio.get_running_loop()
        self.call_soon = self._loop.call_soon
        self.create_task = self._loop.create_task

    def call_later(self, delay: float, callback: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay, callback))
        return self.timers[-1]

    @property
    def timer(self) -> Timer:
        """The one that runs: a connection waits for one thing at a time."""
        (timer,) = (each for each in self.timers if each.is_on)
        return timer


STATES = [
    (ConnectionState.HEAD, b"", b"", 10, b""),
    (ConnectionState.HEAD, b"GET / HT", b"T", 10, b"HTTP/1.1 408 "),
    (ConnectionState.HEAD, b"GET /now HTTP/1.1\r\nHost: x\r\n\r\nGET", b" ", 10, b"HTTP/1.1 200 "),
    (ConnectionState.BODY, POST % (b"/whole", 100) + b"x", b"x", 62, b""),
    (ConnectionState.REST, POST % (b"/now", 100) + b"x", b"x", 2, b"HTTP/1.1 200 "),
    (ConnectionState.IDLE, POST % (b"/now", 1) + b"x", b"", 30, b"HTTP/1.1 200 "),
    (ConnectionState.IDLE, POST % (b"/whole", 1) + b"x", b"", 30, b"HTTP/1.1 200 "),
    (ConnectionState.LINGER, POST % (b"/now", LONG) + b"x", b"x", 2, b"HTTP/1.1 200 "),
    (ConnectionState.LINGER, CHUNKED + b"1\r\nx\r\n", b"1\r\nx\r\n", 2, b"HTTP/1.1 200 "),
    (ConnectionState.LINGER, b"\x16\x03\x01", b"\x16\x03", 2, b"HTTP/1.1 400 "),
]


@pytest.mark.parametrize(("state", "sent", "more", "seconds", "answer"), STATES)
async def test_every_state_ends_by_itself(
    state: ConnectionState, sent: bytes, more: bytes, seconds: float, answer: bytes
) -> None:
    """Guards connections: each has one timer, and bytes do not renew it."""
    connection = Connection(Loop())
    await connection.send(sent) if sent else None
    timer = connection.loop.timer
    assert connection.protocol.state is state
    for _ in range(5):
        await connection.send(more) if more else None
        assert connection.protocol.state is state
        assert connection.loop.timer is timer
    assert timer.seconds == seconds
    timer.end()
    await asyncio.sleep(0)
    if connection.protocol.state is ConnectionState.LINGER and state is not ConnectionState.LINGER:
        last = connection.loop.timers[-1]
        assert last.is_on
        last.end()
        await asyncio.sleep(0)
    assert connection.transport.is_closed
    assert connection.transport.written.startswith(answer)
    assert bool(answer) == bool(connection.transport.written)


async def test_a_body_may_take_as_long_as_its_reader_allows() -> None:
    """Guards files: they take longer than other bodies, and still have an end."""
    connection = Connection(Loop())
    connection.protocol.allow_body(9000)
    # There is no body yet.
    assert connection.loop.timer.seconds == limits.HEADER_S_MAX
    await connection.send(POST % (b"/whole", 100) + b"x")
    connection.protocol.allow_body(9000)
    for _ in range(3):
        await connection.send(b"x")
        assert connection.loop.timer.seconds == 9000
    connection.loop.timer.end()
    await asyncio.sleep(0)
    assert connection.transport.is_closed


async def test_whoever_waits_for_us_is_not_late() -> None:
    """Guards those who come in a crowd: headers that are there and not read yet are no delay."""
    connection = Connection(Loop())
    connection.rounds.take(10 * limits.STEPS_PER_ROUND)
    connection.protocol.data_received(b"GET /whole HTTP/1.1\r\nHost: x\r\n\r\n")
    connection.loop.timer.end()
    assert connection.transport.written == b""
    for _ in range(20):
        await asyncio.sleep(0)
    assert connection.transport.written.startswith(b"HTTP/1.1 200 ")
    assert connection.protocol.state is ConnectionState.IDLE


async def test_those_who_are_late_together_are_ended_in_turns() -> None:
    """Guards everybody else: one round ends no more of them than it has steps for."""
    loop = Loop()
    rounds = Rounds(loop.call_soon)
    late = [Connection(loop, rounds) for _ in range(100)]
    for each in late:
        each.protocol.data_received(b"G")
    for timer in list(loop.timers):
        timer.end()
    counts = []
    for _ in range(20):
        counts.append(sum(each.transport.is_half_closed for each in late))
        await asyncio.sleep(0)
    more = [after - before for before, after in itertools.pairwise(counts)]
    steps = limits.STEPS_PER_END + limits.STEPS_PER_REQUEST
    assert max(more) <= limits.STEPS_PER_ROUND // steps + 1
    assert counts[0] == 0
    assert counts[-1] == len(late)


async def test_who_is_late_and_comes_before_its_turn_is_served() -> None:
    """Guards a request that is whole when its connection would be ended."""
    connection = Connection(Loop())
    await connection.send(b"GET /now HT")
    connection.loop.timer.end()
    await connection.send(b"TP/1.1\r\nHost: x\r\n\r\n")
    assert connection.transport.written.startswith(b"HTTP/1.1 200 ")
    assert connection.protocol.state is ConnectionState.IDLE


async def test_an_answer_has_no_time_of_its_own() -> None:
    """Guards long answers: only a client that does not read is cut."""
    connection = Connection(Loop())
    await connection.send(POST % (b"/never", 1) + b"x")
    assert connection.protocol.state is ConnectionState.RESPONSE
    assert not any(each.is_on for each in connection.loop.timers)
    connection.protocol.connection_lost(None)
    await asyncio.sleep(0)


async def test_nothing_is_kept_of_what_comes_after_the_last_answer() -> None:
    """Guards memory and the event loop: it is thrown away, not read."""
    connection = Connection(Loop())
    await connection.send(CHUNKED)
    assert connection.protocol.state is ConnectionState.LINGER
    assert b"connection: close" in connection.transport.written
    for _ in range(5):
        await connection.send(b"1\r\nx\r\n" * 1000)
    assert not connection.protocol.conn.held
    assert connection.transport.is_half_closed
    connection.protocol.shutdown()
    assert connection.transport.is_closed


async def test_a_body_that_nobody_reads_is_left_with_the_client() -> None:
    """Guards memory: a connection that is behind is read on, but not what its reader leaves."""
    connection = Connection(Loop())
    transport, protocol = connection.transport, connection.protocol
    tiny, usual = b"10\r\n" + b"x" * 16 + b"\r\n", b"3e8\r\n" + b"x" * 1000 + b"\r\n"
    await connection.send(CHUNKED_LATE + tiny * 8000)
    counts = []
    for _ in range(100):
        if transport.reads:
            await connection.send(usual * 256)
        counts.append(len(protocol.cycle.body))
    assert counts[-1] == counts[10] < limits.BODY_UNREAD_BYTES_MAX // 2
    assert not transport.is_closed
    connection.is_due.set()
    await connection.send(b"0\r\n\r\n")
    assert transport.reads
    assert transport.written.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("more", [0, 1])
async def test_who_takes_no_answers_has_no_long_body_kept(more: int) -> None:
    """Guards memory: answers that nobody takes are waited for, and no body is read meanwhile."""
    connection = Connection(Loop())
    connection.protocol.pause_writing()
    await connection.send(POST % (b"/now", LONG) + b"x" * (limits.BODY_BYTES_SPARED + more))
    assert connection.transport.is_closed == bool(more)
    connection.protocol.connection_lost(None)
    await asyncio.sleep(0)


async def test_one_connection_keeps_little_whatever_goes_wrong() -> None:
    """Guards memory: a bound of its own, should a pause be forgotten."""
    connection = Connection(Loop())
    await connection.send(POST % (b"/late", 10 * limits.BODY_UNREAD_BYTES_MAX))
    for _ in range(limits.BODY_UNREAD_BYTES_MAX // 32_768):
        await connection.send(b"x" * 32_768)
    assert not connection.transport.is_closed
    await connection.send(b"x")
    assert connection.transport.is_closed
    connection.protocol.connection_lost(None)


async def test_nothing_is_kept_of_a_body_that_nobody_will_read() -> None:
    """Guards memory: an answer, or the client's leaving, frees it without the collector."""
    connection = Connection(Loop())
    protocol = connection.protocol
    await connection.send(POST % (b"/now", 1000) + b"x" * 1000)
    assert protocol.state is ConnectionState.IDLE
    assert len(protocol.cycle.body) == 0
    connection.rounds.take(limits.STEPS_PER_ROUND - limits.STEPS_PER_REQUEST - 2)
    protocol.data_received(POST % (b"/late", LONG) + b"x" * LONG)
    assert protocol.cycle.body
    assert protocol.conn.held
    protocol.connection_lost(None)
    assert not protocol.cycle.body
    assert not protocol.conn.held
    await asyncio.sleep(0)
