"""No attacks at all: what the harness and the machine do to a bystander by themselves."""

import asyncio
import contextlib
import os
import signal

from benchmarks.http.hostile.attack import Attack, Bounds, Target, now

BURN_S = 0.01
STOP_S = 2.0
"""Far above what a busy machine does to a calm run."""


async def nothing(target: Target) -> None:
    """Nobody comes."""
    assert target.port
    await asyncio.Event().wait()


async def burn(target: Target) -> None:
    """Take a core, as an attacker on this machine does who has much to compute."""
    assert target.port
    while True:
        until = now() + BURN_S
        while now() < until:
            pass
        await asyncio.sleep(0)


async def stop_server(target: Target) -> None:
    """Have the server stand still for a while: the harness must see that."""
    os.kill(target.pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STOP_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(target.pid, signal.SIGCONT)


ATTACKS = (
    Attack(name="nothing", text="control: nobody comes", run=nothing, needs_key=False),
    Attack(
        name="burn",
        text="control: the attacker computes on a core and sends nothing",
        run=burn,
        needs_key=False,
        bounds=Bounds(),
    ),
    Attack(
        name="server-stopped",
        text=f"control: the server is stopped for {STOP_S:g} s, which must be seen as over",
        run=stop_server,
        needs_key=False,
        is_usual=False,
    ),
)
