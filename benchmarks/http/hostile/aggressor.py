"""`python -m benchmarks.http.hostile.aggressor NAME PORT PID KEY LEN END SECONDS`: one attack.

A process of its own, so that what an attack takes is not counted as the server's. The last line on
standard output is JSON: what it was told, and what it found wrong by itself.
"""

import asyncio
import contextlib
import json
import sys

from benchmarks.http.hostile.attack import Attack, Target
from benchmarks.http.hostile.registry import named
from benchmarks.http.served import allow_files


async def attack_for(attack: Attack, target: Target, seconds: float) -> None:
    """Do it until it ends or the time is over; a connection that fails ends it, and is told."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            try:
                await attack.run(target)
            except* (OSError, EOFError) as group:
                target.told[type(group.exceptions[0]).__name__] += 1


def main(name: str, *rest: str) -> None:
    """Attack, and tell."""
    port, pid, key, model_len, end_name, seconds = rest
    target = Target(int(port), int(pid), key, int(model_len), end_name)
    allow_files()
    asyncio.run(attack_for(named(name), target, float(seconds)))
    print(json.dumps({"told": target.told, "faults": target.faults}))


if __name__ == "__main__":
    main(*sys.argv[1:])
