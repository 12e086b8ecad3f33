"""`Request`: one prompt as token ids, and what to do with it. Frozen.

Made by the Python API and the server, read by the core. Nothing here knows threads or time. Texts
from which tokens are made are checked here (`utf8_bytes`).

Tests: tests/unit/core/test_scheduler.py and tests/unit/core/test_request.py.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import NewType

from jitney.core import limits
from jitney.core.params import SamplingParams
from jitney.errors import InvalidRequest

RequestId = NewType("RequestId", str)
"""Unique among unfinished requests."""

SequenceName = tuple[RequestId, int]
"""The name of a sequence: its request, and its index among the request's completions."""


class Priority(IntEnum):
    """Classes of service. Under the policy `priority` the higher class is served first.

    Here a larger number is a higher class. Over HTTP a number may also be vLLM's, where the lower
    one is served first.
    """

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


def read_priority(value: object) -> Priority:
    """The class for a name in any case, a `Priority` or its number; None is normal."""
    if value is None:
        return Priority.NORMAL
    if isinstance(value, str) and value.upper() in Priority.__members__:
        return Priority[value.upper()]
    # In Python a bool is an int, but it is not a class.
    if isinstance(value, int) and not isinstance(value, bool) and value in set(Priority):
        return Priority(value)
    raise InvalidRequest(
        "priority is low, normal, high or critical, or a number from 0 (low) to 3 (critical), "
        f"and got {value!r:.80}.",
        "priority",
    )


@dataclass(frozen=True, slots=True)
class Share:
    """The most that one tenant may hold: waiting sequences, their tokens, running sequences."""

    waiting_max: int
    waiting_tokens_max: int
    running_max: int

    def __post_init__(self) -> None:
        assert min(self.waiting_max, self.waiting_tokens_max, self.running_max) >= 1, self


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and what to do with it.

    `seed` is a number even if the caller gave none, so that a resumed sequence draws the same.
    `scope` bounds prefix reuse: requests share tokens only within the same scope.
    `reply_id` is the id of the HTTP reply that it is part of; empty without one. `is_chat` says
    whether that is a chat. Both are for records only.
    `share` is the most that its tenant may hold, the same in all its requests; None is no limit.
    `queue_timeout_s` bounds the time until it runs, `request_timeout_s` the time until it ends.
    `is_background` says that it may wait. All others, the live ones, go first, and it has no share
    (`jitney.core.rules.background`).
    `resumed` has one entry for each completion if another engine began this request: the tokens
    that it made, which are not made again, or None where it ended. Empty if this is the first.
    `waited_s` is how long ago another engine accepted it; None if none did. It keeps its age, and
    no bound of the queue refuses it: a caller who was let in is not sent away.
    `is_stored` says whether its prompt may be on the disk, if there is one for prefixes.
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
    is_background: bool = False
    resumed: tuple[tuple[int, ...] | None, ...] = ()
    waited_s: float | None = None
    is_stored: bool = True

    def __post_init__(self) -> None:
        assert len(self.resumed) in (0, self.params.n), "one entry for each completion"
        assert self.share is None or not self.is_background, "it gets what others leave"

    @property
    def resumed_tokens(self) -> dict[int, tuple[int, ...]]:
        """The completions that are to be made here, by their index: the tokens known so far."""
        if not self.resumed:
            return dict.fromkeys(range(self.params.n), ())
        return {index: tokens for index, tokens in enumerate(self.resumed) if tokens is not None}

    @property
    def limited_tenant(self) -> str | None:
        """The tenant whose share it counts against; None if there is no share."""
        return None if self.share is None else self.tenant


def utf8_bytes(text: str, where: str, parameter: str | None = None) -> bytes:
    """The text in UTF-8. Raises InvalidRequest with the name of the text if it has half of a
    surrogate pair."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"Half of a surrogate pair in {where} is not a character; "
            "decode it from its source as UTF-8.",
            parameter,
        ) from None


def checked_bytes(text: str) -> bytes:
    """The text in UTF-8. Raises InvalidRequest if it is too long or not valid."""
    if len(text) > limits.PROMPT_CHARACTERS_MAX:
        raise InvalidRequest(
            f"The text has {len(text)} characters; the limit is {limits.PROMPT_CHARACTERS_MAX}."
        )
    return utf8_bytes(text, "the text")
