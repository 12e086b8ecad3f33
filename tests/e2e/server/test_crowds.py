"""Many who come at once, to a server whose rounds are long."""

import asyncio
import contextlib
import threading

import pytest

from jitney.server import limits
from jitney.server.http.protocol import GuardedProtocol
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import WAIT_S, World, wait_until

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
