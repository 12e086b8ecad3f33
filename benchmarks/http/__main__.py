"""`python -m benchmarks.http [SECTION ...]`: what the server promises, shown on real sockets.

Each section starts its own `jitney serve` and talks to it from this process. It prints what it
found, then its goals, and ends by itself; the last line of all is JSON, and the exit code is 1
when a goal was missed.

    ledger   fake backend: 10,000 requests over 1,000 open streams, byte for byte; half of them left
    kills    SmolLM2: 500 requests, 64 at once, the backend's process killed ten times
    leavers  200 requests of 10,000 tokens that are given up after 0.5 s, then one normal one
    cost     fake backend on one core, in tokens/s; SmolLM2 over HTTP against the engine itself
    drain    SIGTERM under 100 streams, with time to finish and without

`python -m benchmarks.http hostile [--list]` is apart from them: a calm caller beside every attack
of a list; see `benchmarks.http.hostile.command`.

Linux only: memory, files and children are read from /proc, and cores are set aside.
"""

import json
import sys
from collections.abc import Callable

from benchmarks.http.cost import cost
from benchmarks.http.drain import drain
from benchmarks.http.hostile.command import main as hostile
from benchmarks.http.kills import kills
from benchmarks.http.leavers import leavers
from benchmarks.http.ledger import ledger
from benchmarks.http.report import Report
from benchmarks.http.served import missing_here

NOT_HERE = 2

SECTIONS: dict[str, Callable[[Report], None]] = {
    "ledger": ledger,
    "kills": kills,
    "leavers": leavers,
    "cost": cost,
    "drain": drain,
}


def main(names: list[str]) -> int:
    """Run the named sections, or all; the exit code."""
    if names[:1] == ["hostile"]:
        return hostile(names[1:])
    missing = missing_here()
    if missing is not None:
        print(missing)
        return NOT_HERE
    reports: dict[str, Report] = {}
    for name in names or list(SECTIONS):
        print(f"{name}: {SECTIONS[name].__doc__}", flush=True)
        reports[name] = Report()
        SECTIONS[name](reports[name])
    told = {name: {**each.figures, "missed": each.missed} for name, each in reports.items()}
    print(json.dumps(told))
    return int(any(each.missed for each in reports.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
