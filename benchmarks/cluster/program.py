"""`python -m benchmarks.cluster.program FACTS serve ...`: jitney, with replicas of another kind.

FACTS, made by `benchmarks.cluster.fleet`, say what the fake backend of each replica costs and which
router sends to them. Everything else is `jitney` itself. While it runs it takes orders from
standard input, one JSON object a line, and answers each in the file that the order names:

    {"do": "deploy", "count": 3, "changes": {}, "answer": PATH}   deploy the application again
    {"do": "sample", "seconds": 10, "answer": PATH}               look what its threads do
"""

import json
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any  # Any: classes of Ray, and what Serve is called with

from benchmarks.cluster.fleet import ROUTERS
from benchmarks.cluster.sampling import sample
from benchmarks.http.paced import pace
from jitney.cli.main import run
from jitney.config import Settings
from jitney_cluster import on_ray


class Deployer:
    """Stands in for `on_ray.start_replicas`, and does it again when it is told to."""

    def __init__(self, usual: Callable[..., Any]) -> None:
        self._usual = usual
        self._settings: Any = None
        self._name = ""
        self._given: dict[str, Any] = {}
        self.version = "first"
        """Serve replaces all replicas when this changes, and without one whenever it is asked."""

    def __call__(self, settings: Any, bounds: Any, name: str, **given: Any) -> Any:
        self._settings, self._name, self._given = settings, name, given
        return self._usual(settings, bounds, name, **given)

    def again(self, count: int, changes: dict[str, Any]) -> None:
        """Deploy so many replicas with changed settings, and wait until all run."""
        self.version = json.dumps(changes) if changes else "first"
        self._usual(replace(self._settings, **changes), (count, count), self._name, **self._given)


def main() -> None:
    """Change what Serve is asked for, and be `jitney`."""
    facts = json.loads(sys.argv.pop(1))
    serve: Any = vars(on_ray)["serve"]
    usual = serve.deployment
    deployer = Deployer(on_ray.start_replicas)

    def deployment(replica: type[on_ray.RayReplica], **given: Any) -> Any:
        # A node has one place: so replicas are on different nodes, and none is on the head.
        given["ray_actor_options"] = {"num_cpus": 1}
        if ROUTERS[facts["router"]] is not None:
            config = given["request_router_config"]
            given["request_router_config"] = type(config)(
                request_router_class=ROUTERS[facts["router"]],
                request_routing_stats_period_s=config.request_routing_stats_period_s,
            )
        kind = replica if facts["costs"] is None else _paced(replica, facts["costs"])
        return usual(kind, **given).options(version=deployer.version, _internal=True)

    serve.deployment = deployment
    vars(on_ray)["start_replicas"] = deployer
    threading.Thread(target=_obey, args=(deployer,), name="orders", daemon=True).start()
    run()


def _paced(replica: type[on_ray.RayReplica], costs: dict[str, Any]) -> type[on_ray.RayReplica]:
    """A replica whose fake backend takes its time."""

    class PacedReplica(replica):  # type: ignore[valid-type, misc]
        def __init__(self, settings: Settings) -> None:
            pace(costs)
            super().__init__(settings)

    return PacedReplica


def _obey(deployer: Deployer) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer: Any = None
            if order["do"] == "deploy":
                deployer.again(order["count"], order["changes"])
            else:
                answer = sample(order["seconds"])
        except Exception as error:  # Ray raises all kinds; whoever gave the order is told
            answer = {"error": f"{type(error).__name__}: {error}"}
        path = Path(order["answer"])
        # Half an answer is not read.
        path.with_suffix(".part").write_text(json.dumps(answer))
        path.with_suffix(".part").rename(path)


if __name__ == "__main__":
    main()
