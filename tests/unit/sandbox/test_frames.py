"""Frames over a pair of sockets."""

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from jitney.sandbox.frames import FRAME_BYTES_MAX, ChannelClosed, Frames, MalformedFrame

Ends = tuple[socket.socket, socket.socket]
LONG = bytes(range(256)) * 20_000


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a connection."""
    one, other = socket.socketpair()
    yield one, other
    one.close()
    other.close()


def test_frames_arrive_in_order(ends: Ends) -> None:
    """Guards against frames that run into each other."""
    near, far = Frames(ends[0]), Frames(ends[1])
    near.send(b"")
    near.send(b"one")
    near.send(b"two")
    assert [far.receive(5.0) for _ in range(3)] == [b"", b"one", b"two"]


def test_a_frame_larger_than_the_buffers_arrives_whole(ends: Ends) -> None:
    """Guards against a long answer that is cut where the kernel's buffer ends."""
    near, far = Frames(ends[0]), Frames(ends[1])
    sender = threading.Thread(target=near.send, args=(LONG, 30.0))
    sender.start()
    assert far.receive(30.0) == LONG
    sender.join(30.0)


def test_silence_ends_in_a_time_out(ends: Ends) -> None:
    """Guards against a wedged backend that is waited for without end."""
    with pytest.raises(TimeoutError):
        Frames(ends[0]).receive(0.01)


def test_half_a_frame_ends_in_a_time_out_and_goes_on_after_it(ends: Ends) -> None:
    """Guards against a wait that is bounded only before the first byte, and against bytes that are
    forgotten when the rest of their frame is late."""
    frames = Frames(ends[0])
    ends[1].sendall(b"\x00\x00\x00\x09[")
    with pytest.raises(TimeoutError):
        frames.receive(0.01)
    ends[1].sendall(b"the rest")
    assert frames.receive(5.0) == b"[the rest"


def test_a_reader_that_reads_nothing_ends_in_a_time_out(ends: Ends) -> None:
    """Guards against a batch that waits without end for a process that is stuck."""
    with pytest.raises(TimeoutError):
        Frames(ends[0]).send(LONG, 0.01)


def test_the_end_of_the_other_side_is_seen(ends: Ends) -> None:
    """Guards against a dead process that looks like a slow one."""
    ends[1].sendall(b"\x00\x00\x00\x09[")
    Frames(ends[1]).close()
    with pytest.raises(ChannelClosed):
        Frames(ends[0]).receive(5.0)


def test_closing_wakes_whoever_waits(ends: Ends) -> None:
    """Guards against a close that hangs until the other side speaks."""
    frames = Frames(ends[0])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(frames.receive, 200.0)
        frames.close()
        with pytest.raises(ChannelClosed):
            waiting.result(100.0)
    with pytest.raises(ChannelClosed):
        frames.send(b"late")


def test_a_length_beyond_the_limit_is_refused(ends: Ends) -> None:
    """Guards against four damaged bytes that ask for all memory."""
    ends[1].sendall(b"\xff\xff\xff\xff")
    with pytest.raises(MalformedFrame, match="longer"):
        Frames(ends[0]).receive(5.0)


def test_a_frame_beyond_the_limit_is_not_sent(ends: Ends) -> None:
    """Guards the other side: it would take the frame for damage, and end."""
    with pytest.raises(MalformedFrame, match="too long"):
        Frames(ends[0]).send(bytes(FRAME_BYTES_MAX + 1))
