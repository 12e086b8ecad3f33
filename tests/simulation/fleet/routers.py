"""The routers that are compared: the production table, and two that know neither costs nor
prefixes.

Both naive ones live here only. `PowerOfTwo` is what Ray Serve does by default: of two replicas
drawn at random, the one with fewer requests. It is told their true number at that moment.
"""

import random
from collections.abc import Callable, Iterable

from jitney_cluster.routing import Head, ReplicaReport, RouteTable

ROUTERS = ("expected", "power-of-two", "round-robin")


class NaiveRouter:
    """Knows which replicas there are, and nothing else."""

    def __init__(self) -> None:
        self.replicas: list[str] = []

    def keep(self, names: Iterable[str]) -> None:
        """These are the replicas now."""
        self.replicas = list(names)

    def report(self, name: str, report: ReplicaReport) -> None:
        """Not used."""

    def sent(self, name: str, request_id: str, number: int, head: Head) -> None:
        """Not used."""

    def began(self, name: str, number: int) -> None:
        """Not used."""

    def ended(self, name: str, request_id: str) -> None:
        """Not used."""

    def _left(self, avoided: Iterable[str]) -> list[str]:
        without = set(avoided)
        return [name for name in self.replicas if name not in without] if without else self.replicas


class RoundRobin(NaiveRouter):
    """One after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._turn = 0

    def choose(self, head: Head, avoided: Iterable[str] = ()) -> str | None:
        """The next one."""
        names = self._left(avoided)
        self._turn += 1
        return names[self._turn % len(names)] if names else None


class PowerOfTwo(NaiveRouter):
    """Of two at random, the one with fewer requests."""

    def __init__(self, count_of: Callable[[str], float], draw: random.Random) -> None:
        super().__init__()
        self._count_of = count_of
        self._draw = draw

    def choose(self, head: Head, avoided: Iterable[str] = ()) -> str | None:
        """The better of two."""
        names = self._left(avoided)
        if len(names) < 2:
            return names[0] if names else None
        return min(self._draw.sample(names, 2), key=self._count_of)


FleetRouter = RouteTable | RoundRobin | PowerOfTwo
"""What an ingress asks where to send a request; `RouteTable` says what each method means."""


def make_router(
    kind: str, ingress: str, count_of: Callable[[str], float], draw: random.Random
) -> FleetRouter:
    """The router of one ingress."""
    if kind == "expected":
        return RouteTable(ingress)
    assert kind in ROUTERS, kind
    return RoundRobin() if kind == "round-robin" else PowerOfTwo(count_of, draw)
