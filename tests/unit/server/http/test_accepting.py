"""The acceptor on real sockets, where the system has nothing left for another connection."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from jitney.server.http.accepting import RETRY_S, Acceptor, listen
from jitney.server.limits import UNSENT_BYTES_MAX

WAIT_S = 100.0


@contextlib.contextmanager
def no_files_left() -> Iterator[None]:
    """This process can open no file in here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A new file gets the lowest number that is free, and no number may reach the limit.
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs the limits of Linux")
def test_whoever_comes_while_no_file_is_left_is_taken_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards newcomers, and the loop from spinning: it looks again, and says why they wait."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_come_while_no_file_is_left(caplog))
    assert caplog.text.count("No connection can be taken") == 1


def test_whoever_was_taken_is_there_when_it_is_closed() -> None:
    """Guards the last to come before a shutdown: they are seen off like all others."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_close_on_arrival()) == 3


async def _close_on_arrival() -> int:
    """How many are there of three who were in line."""
    connections: set[asyncio.Protocol] = set()

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            connections.add(self)
            transport.close()

    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        acceptor = Acceptor(listener, Greeter, connections)
        listen(listener, UNSENT_BYTES_MAX)
        acceptor.open()
        for _ in range(3):
            stack.enter_context(socket.socket()).connect(listener.getsockname())
        async with asyncio.timeout(WAIT_S):
            while not acceptor.arriving:  # noqa: ASYNC110, it has no event
                await asyncio.sleep(0)
        await acceptor.close()
        return len(connections)


async def _come_while_no_file_is_left(caplog: pytest.LogCaptureFixture) -> None:
    made = asyncio.Event()

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set()
            transport.close()

    with socket.socket() as listener, socket.socket() as client:
        listener.bind(("127.0.0.1", 0))
        acceptor = Acceptor(listener, Greeter, connections=())
        listen(listener, UNSENT_BYTES_MAX)
        acceptor.open()
        address = listener.getsockname()
        with no_files_left(), caplog.at_level(logging.WARNING):
            client.connect(address)
            async with asyncio.timeout(WAIT_S):
                while not caplog.records:  # noqa: ASYNC110, a log has no event
                    await asyncio.sleep(0.01)
                await asyncio.sleep(3 * RETRY_S)
            assert not made.is_set()
        async with asyncio.timeout(WAIT_S):
            await made.wait()
        await acceptor.close()
        with pytest.raises(ConnectionRefusedError), socket.socket() as late:
            late.connect(address)
