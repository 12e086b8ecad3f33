"""What passes between an ingress and a replica of a simulated fleet."""

from dataclasses import dataclass, field
from typing import Any, Protocol  # Any: the arguments of a later call

from jitney.core.events import FinishEvent, StartEvent
from jitney.core.request import Request
from jitney.engine.answer import Completion
from jitney.errors import JitneyError
from jitney_cluster.cluster_request import ClusterRequest
from tests.simulation.fleet.traffic import Asked
from tests.simulation.seen import TokenEvent

HOP_S = 0.002
"""An order, a cancel or a refusal is on its way for so long."""


class Later(Protocol):
    """The clock of the world: has something called at a later moment, with that moment as its last
    argument."""

    def __call__(self, at: float, call: Any, *arguments: Any) -> None: ...


@dataclass(slots=True, eq=False)
class Line:
    """The connection of a replica to one ingress. What is sent over a broken one is lost.

    The ingress takes no other connection of this replica before it has noticed.
    """

    is_broken: bool = False
    is_noticed: bool = False
    """Whether the ingress knows that it is broken."""


@dataclass(slots=True, eq=False)
class FleetRequest:
    """A request of an ingress, until it ends."""

    asked: Asked
    state: ClusterRequest
    received: list[list[int]]
    """What its caller has got: the tokens of each completion."""
    finished: set[int] = field(default_factory=set)
    """The completions whose end it has got."""
    order: "Order | None" = None
    """The present attempt; None while it waits for a replica or for another suspect."""
    is_late: bool = False
    """Whether one of its completions passed its deadline, perhaps on a replica that is gone."""
    is_over: bool = False
    lost_count: int = 0
    """Replicas lost since its caller last got a token."""


class OrderSender(Protocol):
    """An ingress, as replicas know it."""

    name: str

    def accepted(self, order: "Order") -> None:
        """A replica has taken an order."""

    def refused(self, order: "Order", error: JitneyError, now: float) -> None:
        """A replica has not taken it."""

    def started(self, order: "Order", event: StartEvent, now: float) -> None:
        """It runs."""

    def received(self, order: "Order", event: TokenEvent, now: float) -> None:
        """A token was made."""

    def finished(self, order: "Order", event: FinishEvent, now: float) -> None:
        """A completion has ended."""

    def call_over(self, order: "Order", now: float) -> None:
        """The call of an order is over, and nothing more will come of it."""


@dataclass(slots=True, eq=False)
class Order:
    """One attempt to run a request on one replica. `number` is that of the ingress."""

    ingress: OrderSender
    live: FleetRequest
    number: int
    request: Request
    replica: str
    line: Line = field(default_factory=Line)
    """The connection over which it is answered; set when it arrives."""
    is_accepted: bool = False
    """Whether the ingress knows that the replica took it."""
    has_begun: bool = False
    """Whether the ingress has got a token of it."""
    left_count: int = 0
    """Completions that have not ended on the replica."""
    completions: list[Completion] = field(default_factory=list)
    """The results of those that have."""

    @property
    def call_id(self) -> str:
        """The name of this attempt for the router."""
        return str(self.number)
