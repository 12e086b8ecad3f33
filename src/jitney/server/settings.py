"""What the server is told at its start: `ServerSettings`, and the `Key`s of its callers. Frozen."""

from dataclasses import dataclass, field

from jitney.core.request import Priority
from jitney.server import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Someone who may call, and how much. None is no limit.

    `scope` is the boundary of prefix reuse: callers share cached prefixes only within one.
    """

    name: str
    secret: str = field(repr=False)
    priority_max: Priority = Priority.CRITICAL
    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    scope: str | None = None
    queue_share: float | None = None
    running_share: float | None = None
    """Parts of the queue and of the places that it may hold. None is all of them for the only
    key, and for one of several what `jitney.server.limits` says."""

    @property
    def cache_scope(self) -> str:
        """Its own name unless it was given a scope to share."""
        return self.name if self.scope is None else self.scope


def body_bytes_for(model_len_max: int) -> int:
    """The largest body that a model of this length has use for."""
    return max(limits.BODY_BYTES_MIN, limits.BODY_BYTES_PER_TOKEN * model_len_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The numbers and names that the server runs by."""

    model_names: tuple[str, ...]
    """The first is what replies carry; the others are understood as well."""
    keys: tuple[Key, ...] = ()
    """Without any, everyone may call."""
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    """Values of the Host header that are answered; without any, all are."""
    body_bytes_max: int = 10_000_000
    bodies_bytes_max: int = limits.BODIES_BYTES_MIN
    """Bytes of bodies that may be held at once, over all requests."""
    shutdown_s: float = 30.0
    """How long running work may take to finish once the server was asked to stop."""
    stall_s_max: float = 10.0
    """Without progress for so long while work waits, /health says so."""
    send_s_max: float = limits.SEND_S_MAX
    """How long a client may take nothing though there is more for it than the system holds."""
    unsent_bytes_max: int = limits.UNSENT_BYTES_MAX
    """What the system may hold for a client that does not read."""
    ping_s: float = limits.PING_S

    def __post_init__(self) -> None:
        assert self.model_names, "a model has a name"
        assert self.bodies_bytes_max >= self.body_bytes_max, "one body always fits"
