"""`python -m benchmarks.http [SECTION ...]`: what the server promises, shown on real sockets.

Each section starts its own `jitney serve` and talks to it from this process. It prints what it
found, then its goals, and ends by itself; the last line of all is JSON, and the exit code is 1
when a goal was missed.

    ledger   fake backend: 10,000 requests over 1,000 open streams, byte for byte; half of them left
    kills    SmolLM2: 500 requests, 64 at once, the backend's process killed ten times, or --kills
    leavers  200 requests of 10,000 tokens that are given up after 0.5 s, then one normal one
    cost     fake backend on one core, in tokens/s; SmolLM2 over HTTP against the engine itself
    drain    SIGTERM under 100 streams, with time to finish and without
    overload ten times of what the server can do, for 60 s or --seconds
    stalled  100 readers that stop reading, with and without logprobs, until they are cut
    starved  four busy loops on the server's cores, and then too little memory
    tenants  whether one key can tell what another one's prompts were, by count or by clock
    turns    three turns of an agent with 24,000 tokens, beside a stream

Run only when it is named, because it takes half an hour:

    soak     mixed load with a fault every ten seconds, for 30 minutes or --minutes

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
from benchmarks.http.options import parse
from benchmarks.http.overload import overload
from benchmarks.http.report import Report
from benchmarks.http.served import missing_here
from benchmarks.http.soak import soak
from benchmarks.http.stalled import stalled
from benchmarks.http.starved import starved
from benchmarks.http.tenants import tenants
from benchmarks.http.turns import turns

NOT_HERE = 2

SECTIONS: dict[str, Callable[[Report], None]] = {
    "ledger": ledger,
    "kills": kills,
    "leavers": leavers,
    "cost": cost,
    "drain": drain,
    "overload": overload,
    "stalled": stalled,
    "starved": starved,
    "tenants": tenants,
    "turns": turns,
    "soak": soak,
}
WHEN_NAMED = frozenset({"soak"})


def main(arguments: list[str]) -> int:
    """Run the named sections, or all but the longest; the exit code."""
    if arguments[:1] == ["hostile"]:
        return hostile(arguments[1:])
    names, options = parse(arguments, list(SECTIONS))
    missing = missing_here()
    if missing is not None:
        print(missing)
        return NOT_HERE
    reports: dict[str, Report] = {}
    for name in names or [name for name in SECTIONS if name not in WHEN_NAMED]:
        print(f"{name}: {SECTIONS[name].__doc__}", flush=True)
        reports[name] = Report(options)
        SECTIONS[name](reports[name])
    told = {name: {**each.figures, "missed": each.missed} for name, each in reports.items()}
    print(json.dumps(told))
    return int(any(each.missed for each in reports.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
