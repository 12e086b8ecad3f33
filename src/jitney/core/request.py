"""What the engine was asked: `Request`, frozen, with token ids in it.

Made by whoever faces the caller (`jitney.api.llm`, the server), read by the core. Nothing here
knows text, threads or time other than the moment of arrival, which it is told.

Tests: tests/unit/core/test_scheduler.py.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType

from jitney.core.params import SamplingParams
from jitney.errors import InvalidRequest

RequestId = NewType("RequestId", str)
"""Unique among live requests."""


class Priority(IntEnum):
    """Classes of service; the higher is served first under the `priority` policy.

    Numbers count up. Over HTTP they count down, because the field there is vLLM's.
    """

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


def read_priority(given: object) -> Priority:
    """The class that a name in any case, a `Priority` or its number means; None is normal."""
    if given is None:
        return Priority.NORMAL
    if isinstance(given, str) and given.upper() in Priority.__members__:
        return Priority[given.upper()]
    # A bool is an int to Python, and no class to anyone.
    if isinstance(given, int) and not isinstance(given, bool) and given in set(Priority):
        return Priority(given)
    raise InvalidRequest(
        "priority is low, normal, high or critical, or a number from 0 (low) to 3 (critical), "
        f"and got {given!r:.80}.",
        "priority",
    )


@dataclass(frozen=True, slots=True)
class Share:
    """The most that one tenant may hold: sequences and their tokens that wait, and that run."""

    waiting_max: int
    waiting_tokens_max: int
    running_max: int

    def __post_init__(self) -> None:
        assert min(self.waiting_max, self.waiting_tokens_max, self.running_max) >= 1, self


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and what to do with it. Times are seconds on the engine's own clock.

    `seed` is concrete even when the caller gave none, so that a resumed sequence draws alike.
    `scope` is the boundary of prefix reuse: tokens are shared only within equal scopes.
    `reply_id` is the id of the HTTP reply that it is a part of; empty without one. `is_chat` says
    whether that is a chat. Both are for records only.
    `share` is what its tenant may hold beside others, the same in all of its requests; None is
    everything.
    `queue_timeout_s` bounds the time until it first runs, `request_timeout_s` that until it ends.
    """

    id: RequestId
    prompt: tuple[int, ...]
    params: SamplingParams
    seed: int
    priority: Priority = Priority.NORMAL
    tenant: str = ""
    reply_id: str = ""
    is_chat: bool = False
    scope: str = ""
    share: Share | None = None
    queue_timeout_s: float | None = None
    request_timeout_s: float | None = None

    @property
    def sharer(self) -> str | None:
        """The tenant against whose share it counts; None is nobody's, and bounded by no share."""
        return None if self.share is None else self.tenant
