"""What an attack did to everybody else: one row of the table, and whether that is too much."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass, replace

from benchmarks.http.hostile.attack import Attack, Bounds
from benchmarks.http.hostile.processes import Peak, Taken, taken
from benchmarks.http.hostile.watched import Watched
from benchmarks.http.wire import Json

SETTLE_S_MAX = 10.0
LOOKS = 4
LOOK_S = 0.2
"""A bystander's own calls come and go: what is left is what is there at each of some looks."""

MEMORY_SHARE = 0.10
"""Memory counts as back within a tenth of what it was, or within what the attack's bounds say."""

POOL_THREADS = 6
"""Threads of pools that are started when all others of a pool are busy for the first time."""
PROCESS_FILES, PROCESS_THREADS = 6, 2
"""What a process for templates has open, with its parent\'s end of it."""

OK, OVER, SKIPPED = "ok", "over", "skipped"
WRONG = "500"
"""Whatever is sent, this is never the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One attack; times in ms above calm, memory in MiB."""

    attack: str
    verdict: str
    why: list[str]
    gap_ms: float = 0.0
    health_ms: float = 0.0
    chat_ms: float = 0.0
    late_ms: float = 0.0
    settle_s: float = 0.0
    before: Taken | None = None
    peak_server_mib: float = 0.0
    peak_children_mib: float = 0.0
    after: Taken | None = None
    told: dict[str, int] | None = None
    failures: dict[str, dict[str, int]] | None = None
    because: str = ""
    tries: int = 1

    def json(self) -> Json:
        """For programs."""
        return asdict(self)


def skipped(attack: Attack, reason: str) -> Row:
    """An attack that cannot be done here."""
    return Row(attack=attack.name, verdict=SKIPPED, why=[reason])


def run_beside(server: Watched, attack: Attack, seconds: float) -> Row:
    """Attack, let it settle, and judge."""
    before = _at_rest(server)
    server.bystander.take()
    with Peak(server.pid) as peak:
        aftermath = server.attack(attack, seconds)
        after, settle_s = settled(server, before, attack.bounds)
    told = server.bystander.take()
    above = {
        name: max(0.0, told[name]["worst_ms"] - server.calm[name]["worst_ms"])
        for name in ("stream", "health", "chat")
    }
    failures = {name: told[name]["failures"] for name in above if told[name]["failures"]}
    why = [] if server.is_alive else ["the server is gone"]
    why += aftermath.faults + _slow(above, attack.bounds) + _failed(failures, attack.bounds)
    why += left(before, after, attack.bounds) if server.is_alive else []
    if WRONG in aftermath.told:
        why.append(f"status {WRONG} was told")
    return Row(
        attack=attack.name,
        verdict=OVER if why else OK,
        why=why,
        gap_ms=above["stream"],
        health_ms=above["health"],
        chat_ms=above["chat"],
        late_ms=told["late"]["worst_ms"],
        settle_s=settle_s,
        before=before,
        peak_server_mib=peak.server_mib,
        peak_children_mib=peak.children_mib,
        after=after,
        told=aftermath.told,
        failures=failures,
        because=attack.bounds.because,
    )


def settled(server: Watched, before: Taken, bounds: Bounds) -> tuple[Taken, float]:
    """What the server takes once it takes no more than before, or after a while; how long."""
    started = time.monotonic()
    looks: deque[Taken] = deque(maxlen=LOOKS)
    while True:
        time.sleep(LOOK_S)
        looks.append(taken(server.pid))
        now, waited_s = least(looks), time.monotonic() - started
        is_back = len(looks) == LOOKS and not left(before, now, bounds)
        if is_back or waited_s >= SETTLE_S_MAX or not server.is_alive:
            return now, waited_s


def least(looks: Iterable[Taken]) -> Taken:
    """The least of each at any of these looks."""
    return Taken(*(min(values) for values in zip(*map(astuple, looks), strict=True)))


def _at_rest(server: Watched) -> Taken:
    """What it takes now; threads of a pool that ended for want of work may come back."""
    now = taken(server.pid)
    return replace(now, threads=max(now.threads, server.warm.threads))


def left(before: Taken, after: Taken, bounds: Bounds) -> list[str]:
    """What is there that was not there before."""
    why = []
    for name, was, now in (
        ("server", before.server_mib, after.server_mib),
        ("children", before.children_mib, after.children_mib),
    ):
        if now > was + max(MEMORY_SHARE * was, bounds.memory_mib):
            why.append(f"memory of {name} {was:.0f} to {now:.0f} MiB")
    count = bounds.processes
    more = {
        "files": count * PROCESS_FILES,
        "threads": POOL_THREADS + count * PROCESS_THREADS,
        "processes": count,
    }
    for name, most in more.items():
        was, now = getattr(before, name), getattr(after, name)
        if now > was + most:
            why.append(f"{name} {was} to {now}")
    return why


def _slow(above: dict[str, float], bounds: Bounds) -> list[str]:
    limits = {"stream": bounds.gap_ms, "health": bounds.health_ms, "chat": bounds.chat_ms}
    names = {"stream": "gap", "health": "/health", "chat": "new chat"}
    return [
        f"{names[name]} {above[name]:.0f} ms, limit {limit:.0f}"
        for name, limit in limits.items()
        if limit is not None and above[name] > limit
    ]


def _failed(failures: dict[str, dict[str, int]], bounds: Bounds) -> list[str]:
    allowed = bounds.may_fail | (frozenset({"chat"}) if bounds.chat_ms is None else frozenset())
    return [
        f"{name} failed: " + ", ".join(f"{what} x {count}" for what, count in found.items())
        for name, found in failures.items()
        if name not in allowed
    ]
