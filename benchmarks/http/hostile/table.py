"""Rows for people."""

import os
import resource

from benchmarks.http.hostile.judge import Row
from benchmarks.http.hostile.processes import Taken

HEAD = (
    f"{'attack':<24} {'gap':>6} {'health':>6} {'chat':>6} {'late':>5}  {'server MiB':<15} "
    f"{'children MiB':<15} {'files':<9} {'threads':<7} {'procs':<5}  "
    "verdict; what the attacker was told"
)
NOTES = (
    "gap, health, chat: the worst wait of a bystander in ms above a calm run: between two events "
    "of its stream, for /health, for a short new question.",
    "late: how late the bystander's own process was woken, in ms. Attackers share the cores with "
    "the server here; `burn` does nothing but take one core, and what it does to the bystander is "
    "the machine's share in every other row.",
    "memory is before/peak/after; files, threads and processes are before/after, over the server "
    "and its children.",
    "over: above the attack's limit (250 ms for gap and health, 2 s for chat, unless it says "
    "otherwise), memory not back within a tenth or 30 MiB after 10 s, or something left.",
)


def machine_line() -> str:
    """What bounds the attacks here."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = "any number of" if limit == resource.RLIM_INFINITY else str(limit)
    return (
        f"here: {os.cpu_count()} cores for server, attacker and bystander together; each caller is "
        f"one process on the loopback address, with {files} open files at most."
    )


def calm_line(calm: dict[str, dict[str, float]]) -> str:
    """How a bystander fares when nothing happens."""
    parts = [f"{name} {calm[name]['worst_ms']:.0f} ms" for name in ("stream", "health", "chat")]
    return (
        f"calm, worst: {', '.join(parts)}; late {calm['late']['worst_ms']:.0f} ms; "
        f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    )


def line(row: Row) -> str:
    """One row."""
    if row.before is None or row.after is None:
        return f"{row.attack:<24} {row.verdict}: {'; '.join(row.why)}"
    before, after = row.before, row.after
    told = ", ".join(f"{what} x {count}" for what, count in sorted((row.told or {}).items()))
    verdict = row.verdict if not row.why else f"{row.verdict}: {'; '.join(row.why)}"
    again = f" (try {row.tries})" if row.tries > 1 else ""
    because = f" [wider: {row.because}]" if row.because else ""
    return (
        f"{row.attack:<24} {row.gap_ms:>6.0f} {row.health_ms:>6.0f} {row.chat_ms:>6.0f} "
        f"{row.late_ms:>5.0f}  "
        f"{_memory(before.server_mib, row.peak_server_mib, after.server_mib):<15} "
        f"{_memory(before.children_mib, row.peak_children_mib, after.children_mib):<15} "
        f"{_pair(before, after, 'files'):<9} {_pair(before, after, 'threads'):<7} "
        f"{_pair(before, after, 'processes'):<5}  {verdict}{again}{because}; "
        f"told: {told or 'nothing'}"
    )


def _memory(*values: float) -> str:
    return "/".join(f"{value:.0f}" for value in values)


def _pair(before: Taken, after: Taken, name: str) -> str:
    return f"{getattr(before, name)}/{getattr(after, name)}"
