"""`jitney serve` over replicas on nodes of this machine, for one run; and how a result is told."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any  # Any: a JSON value

from benchmarks.cluster.nodes import Nodes
from benchmarks.http.served import Served, served
from jitney_lab.bench.report import Result, document
from jitney_lab.bench.steal import StealWatch, with_steal
from jitney_lab.cli.bench_result import give_out

ROUTERS = {
    "jitney": None,
    "power of two": "ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter",
    "prefix affinity": "benchmarks.cluster.routers:TextPrefixRouter",
}
"""Where the classes of routers are, by their names in tables; the first is the usual one."""

START_S_MAX = 600.0
"""Ray takes a minute on a busy machine, and each replica as long again."""

DEPLOY_S_MAX = 600.0
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Fleet:
    """A server over replicas; `nodes` are what they run on."""

    nodes: Nodes
    server: Served

    async def deploy(self, count: int, changes: dict[str, Any]) -> None:
        """Deploy again: so many replicas, with changed settings. Raises RuntimeError."""
        await self._order({"do": "deploy", "count": count, "changes": changes}, DEPLOY_S_MAX)

    async def sample(self, seconds: float) -> dict[str, Any]:
        """What the ingress does in these seconds (`benchmarks.cluster.sampling`)."""
        order = {"do": "sample", "seconds": seconds}
        sampled: dict[str, Any] = await self._order(order, seconds + DEPLOY_S_MAX)
        return sampled

    async def _order(self, order: dict[str, Any], limit_s: float) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "answer"
            self.server.tell(json.dumps({**order, "answer": str(path)}))
            async with asyncio.timeout(limit_s):
                while not path.exists():  # noqa: ASYNC110, a file has no event
                    await asyncio.sleep(LOOK_S)
            answer = json.loads(path.read_text())
        if answer is not None and "error" in answer:
            raise RuntimeError(answer["error"])
        return answer


@contextlib.contextmanager
def fleet(
    nodes: Nodes,
    replicas: int,
    *flags: str,
    costs: dict[str, Any] | None = None,
    router: str = "jitney",
    cores: set[int] | None = None,
) -> Iterator[Fleet]:
    """A server over so many replicas, which ends with the block.

    `costs` are fields of the fake backend's settings; one of `ROUTERS` sends to the replicas.
    """
    facts = json.dumps({"costs": costs, "router": router})
    joined = ("--replicas", str(replicas), "--ray-address", nodes.address, "--jobs-dir", "none")
    with served(
        *joined,
        *flags,
        cores=cores,
        program=("benchmarks.cluster.program", facts),
        start_s=START_S_MAX,
    ) as server:
        yield Fleet(nodes, server)
        # Its replicas go before it: the next server has the same name for its own.
        server.terminate()
        asyncio.run(server.ended())


@contextlib.contextmanager
def telling(seed: int) -> Iterator["Telling"]:
    """Gives the result out when the block ends, with what the machine gave to others meanwhile."""
    watch, told = StealWatch(), Telling()
    yield told
    assert told.result is not None, "the block sets it"
    result = with_steal(told.result, watch.share())
    content = {**document(result, seed), "missed": told.missed}
    give_out(replace(result, notes=(*result.notes, *told.goals)), content)


class Telling:
    """The result of a command, and its goals."""

    def __init__(self) -> None:
        self.result: Result | None = None
        self.goals: list[str] = []
        self.missed: list[str] = []

    def check(self, goal: str, holds: bool) -> None:
        """A goal, and whether it was reached."""
        self.goals.append(f"{'ok    ' if holds else 'MISSED'} {goal}")
        if not holds:
            self.missed.append(goal)
