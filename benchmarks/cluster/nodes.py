"""Ray on this machine, as a head and some nodes with room for one replica each.

The head has room for none: with it Ray's tables and Serve's controller would go. The nodes are what
`ray.cluster_utils` makes; what dies of them dies at once, as with a loss of power. Their files are
in a folder of their own, so that no other Ray of this user is found, or disturbed.
"""

import asyncio
import contextlib
import importlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: Ray has no types for its nodes

from benchmarks.http.served import children_of

ROOT = Path(__file__).parents[2]
REPLICA_TITLE = b"ServeReplica:jitney"
START_S_MAX = 300.0
FROZEN_S = 20.0
"""How long a node says nothing before it is gone: longer than Ray takes to miss it."""

_TICKS_BEFORE = 19
"""Where the start of a process stands in its line, after the name."""


@dataclass(frozen=True, slots=True)
class Replica:
    """The process of a replica, and the node that it is on."""

    pid: int
    node: Any
    started: int
    """In ticks of the kernel's clock."""


class Nodes:
    """The head and the nodes. Everything but `kill` takes seconds; `close` ends all of it."""

    def __init__(self, count: int) -> None:
        self._folder = tempfile.mkdtemp(prefix="jitney-ray-")
        # Ray looks here for a cluster that runs already, and leaves a note about its own.
        os.environ["RAY_TMPDIR"] = self._folder
        # Replicas and routers are partly of this package.
        paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        logging.getLogger("ray").setLevel(logging.WARNING)
        utils = importlib.import_module("ray.cluster_utils")
        head = {"num_cpus": 0, "include_dashboard": False, "dashboard_port": _free_port()}
        # Its own way to end with this process is for the main thread; nodes are added elsewhere.
        self._cluster = utils.Cluster(
            initialize_head=True, head_node_args=head, shutdown_at_exit=False
        )
        self._changing = asyncio.Lock()
        """Ray's own lists of nodes are for one thread at a time."""
        try:
            for _ in range(count):
                self._cluster.add_node(num_cpus=1, wait=False)
            self._cluster.wait_for_nodes(START_S_MAX)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where drivers join."""
        return str(self._cluster.address)

    def replicas(self) -> list[Replica]:
        """The replicas whose processes live, the oldest first."""
        found = [
            Replica(pid, node, started)
            for node in list(self._cluster.worker_nodes)
            for pid, started in _family(node).items()
            if REPLICA_TITLE in _command(pid)
        ]
        return sorted(found, key=lambda each: each.started)

    def kill(self, kind: str, replica: Replica) -> None:
        """Kill a replica, or all processes of its node; `frozen` stops them, without a word."""
        if kind == "replica":
            _send(signal.SIGKILL, {replica.pid: replica.started})
        else:
            _send(signal.SIGSTOP if kind == "frozen" else signal.SIGKILL, _family(replica.node))

    async def replace(self, kind: str, replica: Replica) -> None:
        """After the kill of a node: put another one in its place."""
        if kind == "frozen":
            await asyncio.sleep(FROZEN_S)
        async with self._changing:
            await asyncio.to_thread(self._replace, replica.node)

    def _replace(self, node: Any) -> None:
        family = _family(node)
        self._cluster.remove_node(node, allow_graceful=False)
        _send(signal.SIGKILL, family)
        self._cluster.add_node(num_cpus=1, wait=False)

    def close(self) -> None:
        """End all nodes."""
        families = [_family(node) for node in self._cluster.list_all_nodes()]
        self._cluster.shutdown()
        for family in families:
            _send(signal.SIGKILL, family)
        shutil.rmtree(self._folder, ignore_errors=True)


@contextlib.contextmanager
def opened(count: int) -> Iterator[Nodes]:
    """Nodes that end with the block, and when this process is asked to end."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    nodes = Nodes(count)
    try:
        yield nodes
    finally:
        nodes.close()


def _free_port() -> int:
    """Ray takes one for the dashboard also where there is none, and may find it taken."""
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


def _family(node: Any) -> dict[int, int]:
    """The processes of a node and when each was started; the raylet first, which starts others."""
    raylets = [each.process.pid for each in node.all_processes.get("raylet", ())]
    pids = [each for pid in raylets for each in (pid, *_descendants(pid))]
    return {pid: _started(pid) for pid in pids}


def _descendants(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [each for child in found for each in _descendants(child)]


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _started(pid: int) -> int:
    with contextlib.suppress(OSError):
        # The name of a program may hold anything, parentheses as well.
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[_TICKS_BEFORE])
    return 0


def _send(number: signal.Signals, family: dict[int, int]) -> None:
    """Send a signal to those that are still who they were: numbers are used again."""
    for pid, started in family.items():
        if started and _started(pid) == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
