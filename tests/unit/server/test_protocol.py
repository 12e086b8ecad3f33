"""When a connection is cut because its client does not read: a transport and a clock of our own."""

import asyncio
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from uvicorn.server import ServerState

from jitney.server.protocol import GuardedProtocol

LIMIT_S = 30.0


class Transport(asyncio.Transport):
    """Holds as many bytes as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent_bytes = 0
        self.was_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.was_aborted = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # Any: as asyncio has it
        return default


class Clock:
    """The time of a loop, as far as it is asked for here."""

    now = 100.0

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, *_: object) -> None:
        return None


def is_cut(sizes: list[int], *, step_s: float = 10.0, is_paused: bool = False) -> bool:
    """Whether a client is cut to whom so much is unsent at one look after the other."""
    clock, transport = Clock(), Transport()
    config = uvicorn.Config(FastAPI(), log_config=None, ws="none")
    config.load()
    protocol = GuardedProtocol(config, ServerState(), {}, clock)
    protocol.connection_made(transport)
    if is_paused:
        protocol.pause_writing()
    for size in sizes:
        transport.unsent_bytes = size
        protocol.cut_if_stalled(LIMIT_S)
        clock.now += step_s
    return transport.was_aborted


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([0] * 9, False),
        ([9, 9, 9], False),
        ([9, 9, 9, 9], True),
        ([9, 9, 9, 0, 9, 9, 9], False),
        ([9, 9, 9, 8, 8, 8, 7, 7, 7], False),
        ([9, 9, 9, 8, 8, 8, 8], True),
        ([9, 10, 11, 12], True),
    ],
)
def test_whoever_takes_nothing_for_as_long_is_cut(sizes: list[int], *, expected: bool) -> None:
    """Guards slow readers from being cut, and places from those who do not read at all."""
    assert is_cut(sizes) is expected
    assert is_cut(sizes, is_paused=True) is expected
