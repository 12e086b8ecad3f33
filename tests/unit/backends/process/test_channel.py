"""Frames over a pair of sockets."""

import socket
import threading
from collections.abc import Iterator

import pytest

from jitney.backends.process.channel import Channel, ChannelClosed
from jitney.backends.process.messages import Done, Encode, Encoded, MalformedFrame, Reset


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection."""
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_in_order(ends: tuple[socket.socket, socket.socket]) -> None:
    """Guards against frames that run into each other."""
    near, far = Channel(ends[0]), Channel(ends[1])
    near.send(Reset())
    near.send(Encode((("täxt", True),)))
    assert far.receive(5.0) == Reset()
    assert far.receive(5.0) == Encode((("täxt", True),))


def test_a_message_larger_than_the_buffers_arrives_whole(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Guards against a long answer that is cut where the kernel's buffer ends."""
    near, far = Channel(ends[0]), Channel(ends[1])
    message = Encoded(tuple(range(1_000_000)))
    sender = threading.Thread(target=near.send, args=(message, 30.0))
    sender.start()
    assert far.receive(30.0) == message
    sender.join(30.0)


def test_silence_ends_in_a_time_out(ends: tuple[socket.socket, socket.socket]) -> None:
    """Guards against a wedged backend that is waited for without end."""
    with pytest.raises(TimeoutError):
        Channel(ends[0]).receive(0.01)


def test_half_a_frame_ends_in_a_time_out(ends: tuple[socket.socket, socket.socket]) -> None:
    """Guards against a wait that is bounded only before the first byte."""
    ends[1].sendall(b"\x00\x00\x00\x09[")
    with pytest.raises(TimeoutError):
        Channel(ends[0]).receive(0.01)


def test_a_frame_goes_on_after_a_time_out(ends: tuple[socket.socket, socket.socket]) -> None:
    """Guards against bytes that are forgotten when the rest of their frame is late."""
    channel = Channel(ends[0])
    ends[1].sendall(b"\x00\x00\x00\x09[")
    with pytest.raises(TimeoutError):
        channel.receive(0.01)
    ends[1].sendall(b'"reset"]')
    assert channel.receive(5.0) == Reset()


def test_a_reader_that_reads_nothing_ends_in_a_time_out(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Guards against a batch that waits without end for a process that is stuck."""
    with pytest.raises(TimeoutError):
        Channel(ends[0]).send(Encoded(tuple(range(1_000_000))), 0.01)


def test_the_end_of_the_other_side_is_seen(ends: tuple[socket.socket, socket.socket]) -> None:
    """Guards against a dead process that looks like a slow one."""
    ends[1].sendall(b"\x00\x00\x00\x09[")
    Channel(ends[1]).close()
    with pytest.raises(ChannelClosed):
        Channel(ends[0]).receive(5.0)


def test_closing_wakes_whoever_waits(ends: tuple[socket.socket, socket.socket]) -> None:
    """Guards against a close that hangs until the other side speaks."""
    channel = Channel(ends[0])
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            channel.receive(30.0)
        except ChannelClosed as error:
            caught.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    channel.close()
    waiting.join(20.0)
    assert caught
    with pytest.raises(ChannelClosed):
        channel.send(Done())


def test_a_length_beyond_the_limit_is_refused(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    """Guards against four damaged bytes that ask for all memory."""
    ends[1].sendall(b"\xff\xff\xff\xff")
    with pytest.raises(MalformedFrame, match="longer"):
        Channel(ends[0]).receive(5.0)
