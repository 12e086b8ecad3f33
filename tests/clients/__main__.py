"""`python -m tests.clients`: real clients against a real server, and a table of what works.

Each client runs in a process of its own, with an environment that turns telemetry off and a home
folder that is thrown away. Needs package registries the first time, and then only loopback.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from jitney.config.machine import cache_folder, environment
from tests.clients.agents import run_agent
from tests.clients.catalog import (
    AGENT_CHECKS,
    AGENTS,
    CHECKS,
    CLIENTS,
    LOOP_CHECKS,
    LOOP_SCRIPT,
    LOOPS,
    Agent,
    Client,
    NodeClient,
    PythonClient,
)
from tests.clients.installs import InstallFailed, node_project, program_of, python_of
from tests.clients.server import MODEL_LEN, Server, serving

CLIENT_S_MAX = 300
NamedT = TypeVar("NamedT", PythonClient, NodeClient, Agent, Client)
QUIET = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_TELEMETRY": "False",
    "NO_PROXY": "127.0.0.1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""No telemetry, no downloads, no proxies."""


@dataclass(slots=True)
class Row:
    """What one client could do."""

    name: str
    version: str = "?"
    results: dict[str, str] = field(default_factory=dict)
    checks: tuple[str, ...] = CHECKS
    troubles: list[str] = field(default_factory=list)

    @property
    def has_failed(self) -> bool:
        return bool(self.troubles) or any(self.result(name) == "FAIL" for name in self.checks)

    def result(self, name: str) -> str:
        """A dash is what the client has no way to do, and silence is a failure."""
        return self.results.get(name, "FAIL")


def main() -> int:
    """Exit code 1 when a check failed, or a client could not be installed."""
    names = [each.name for each in (*CLIENTS, *LOOPS, *AGENTS)]
    parser = argparse.ArgumentParser(
        prog="python -m tests.clients",
        description="Runs real clients against a running server with the embedded model.",
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CLIENT",
                        help=f"of {', '.join(names)}")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1, help="of the forward pass")
    parser.add_argument("--install", action="store_true", help="install the clients, and no more")
    asked = parser.parse_args()
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell has what it starts in the background ignore it, and so would clients.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = cache_folder(environment()) / "clients"
    parts = [
        (rows_of_clients(CLIENTS, folder, asked), CHECKS),
        (rows_of_loops(LOOPS, folder, asked), LOOP_CHECKS),
        ([agent_row(each, folder, asked) for each in wanted(AGENTS, asked)], AGENT_CHECKS),
    ]
    for rows, checks in parts:
        if rows and not asked.install:
            write(table(rows, checks))
    everybody = [row for rows, _ in parts for row in rows]
    for row in everybody:
        for trouble in row.troubles:
            write(f"\n{row.name}: {trouble}\n")
    if asked.install:
        return 1 if any(row.troubles for row in everybody) else 0
    return 1 if any(row.has_failed for row in everybody) else 0


def wanted(clients: Sequence[NamedT], asked: argparse.Namespace) -> list[NamedT]:
    """Those that were asked for."""
    return [each for each in clients if each.name in asked.only]


def rows_of_clients(
    clients: Sequence[Client], folder: Path, asked: argparse.Namespace
) -> list[Row]:
    """What clients could do with the embedded model."""
    rows, commands = {}, {}
    for client in wanted(clients, asked):
        row = rows[client.name] = Row(client.name)
        installed = installed_command(row, client, folder)
        if installed is not None:
            commands[client.name] = installed
    if commands and not asked.install:
        log = folder / "server.log"
        with serving(asked.threads, log, "--max-model-len", str(MODEL_LEN)) as server:
            for name, command in commands.items():
                write(f"running {name}\n")
                fill(rows[name], command, server)
    return list(rows.values())


def installed_command(row: Row, client: Client, folder: Path) -> list[str] | None:
    """How a client is run, once it is installed; None where it cannot be."""
    write(f"installing {client.name}\n")
    try:
        return command_of(client, folder)
    except InstallFailed as error:
        row.troubles.append(f"cannot be installed: {error}")
        return None


def rows_of_loops(
    loops: Sequence[PythonClient], folder: Path, asked: argparse.Namespace
) -> list[Row]:
    """What loops could do with a server whose answers come from a script."""
    rows, commands = {}, {}
    for loop in wanted(loops, asked):
        version = loop.packages[0].split("==")[1]
        row = rows[loop.name] = Row(loop.name, version, checks=LOOP_CHECKS)
        installed = installed_command(row, loop, folder)
        if installed is not None:
            commands[loop.name] = installed
    if commands and not asked.install:
        options = ("--backend", "fake", "--script", str(LOOP_SCRIPT))
        with serving(1, folder / "loops.log", *options) as server:
            for name, command in commands.items():
                write(f"running {name}\n")
                fill_loop(rows[name], command, server)
    return list(rows.values())


def fill_loop(row: Row, command: list[str], server: Server) -> None:
    """Run a loop: its status says whether it got its answer."""
    with tempfile.TemporaryDirectory() as home:
        said = run(row, command, surroundings(home, server))
    row.results["loop"] = "FAIL" if row.troubles else "ok"
    if row.troubles:
        row.troubles.append(said[-3000:])


def agent_row(agent: Agent, folder: Path, asked: argparse.Namespace) -> Row:
    """What an agent could do, once it is installed."""
    write(f"{'installing' if asked.install else 'running'} {agent.name}\n")
    row = Row(agent.name, agent.version, checks=AGENT_CHECKS)
    try:
        program = program_of(folder, agent)
    except InstallFailed as error:
        row.troubles.append(f"cannot be installed: {error}")
        return row
    if not asked.install:
        for name, trouble in run_agent(agent, program, folder, asked.threads).items():
            row.results[name] = "FAIL" if trouble else "ok"
            row.troubles += [f"{name}: {trouble}"] if trouble else []
    return row


def command_of(client: Client, folder: Path) -> list[str]:
    """How the client's script is run; installs what it needs."""
    if isinstance(client, PythonClient):
        return [str(python_of(folder, client)), str(client.path)]
    return ["node", str(node_project(folder) / client.script)]


def fill(row: Row, command: list[str], server: Server) -> None:
    """Run the script, and read its report."""
    with tempfile.TemporaryDirectory() as home:
        report = Path(home) / "report.jsonl"
        said = run(row, command, surroundings(home, server) | {"JITNEY_REPORT": str(report)})
        if report.exists():
            for line in report.read_text(encoding="utf-8").splitlines():
                take(row, json.loads(line))
    if not any(name in row.results for name in CHECKS):
        row.troubles.append(f"told nothing: {said[-3000:]}")


def surroundings(home: str, server: Server) -> dict[str, str]:
    """The environment of a client."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": home,
        "LLM_USER_PATH": home,
        "JITNEY_URL": server.url,
        "JITNEY_MODEL": server.model,
        "JITNEY_MODEL_LEN": str(MODEL_LEN),
        "JITNEY_KEY": server.key,
        "JITNEY_PYTHON": sys.executable,
        "JITNEY_CACHE": str(cache_folder(environment())),
        **QUIET,
    }


def run(row: Row, command: list[str], given: dict[str, str]) -> str:
    """Run the script to its end; all that it said."""
    try:
        done = subprocess.run(
            command,
            env=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=CLIENT_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        row.troubles.append(f"did not end within {CLIENT_S_MAX} s")
        return (error.output or b"").decode(errors="replace")
    if done.returncode != 0:
        row.troubles.append(f"ended with status {done.returncode}")
    return done.stdout.decode(errors="replace")


def take(row: Row, told: dict[str, str]) -> None:
    """One line of a report: a version, or what became of a check."""
    if "version" in told:
        row.version = told["version"]
        return
    row.results[told["check"]] = told["result"]
    if told["result"] == "FAIL":
        row.troubles.append(f"{told['check']}: {told['why']}")


def table(rows: list[Row], checks: tuple[str, ...]) -> str:
    """For people to read, and for documents."""
    lines = [["client", "version", *checks]]
    lines += [[row.name, row.version, *(row.result(name) for name in checks)] for row in rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(lines[0]))]
    shown = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "| " + " | ".join("-" * width for width in widths) + " |"
    return "\n".join([shown[0], rule, *shown[1:]]) + "\n"


def write(text: str) -> None:
    """To standard output, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
    sys.exit(130)
