"""Invariant 9: the queue has bounds, they hold, and the refused are told when to come back."""

import math
from collections.abc import Callable

from jitney.core.request import Request
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.errors import ContextLengthExceeded, Draining, InvalidRequest, QueueFull
from tests.simulation.seen import Seen, Submitted, Violation

NAME = "limits"


class LimitsChecker:
    """Looks at every door that was opened or kept shut."""

    def __init__(self, settings: SchedulerSettings, has_share: Callable[[Request], bool]) -> None:
        self._settings = settings
        self._has_share = has_share

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        if not isinstance(seen, Submitted):
            return
        request_id, length = seen.request.id, len(seen.request.prompt)
        fits = 0 < length < self._settings.model_len_max
        has_room = self._has_room(seen)
        match seen.error:
            case None if not has_room:
                raise Violation(
                    NAME,
                    f"{request_id} was accepted behind {seen.waiting_count} sequences with "
                    f"{seen.waiting_tokens} tokens",
                )
            case None if not fits:
                raise Violation(NAME, f"{request_id} was accepted with {length} tokens of prompt")
            case QueueFull() as error:
                if has_room and self._has_share(seen.request):
                    raise Violation(NAME, f"{request_id} was refused though there is room")
                if not 0.0 < error.retry_after_s < math.inf:
                    raise Violation(NAME, f"{request_id} is to retry in {error.retry_after_s} s")
            case ContextLengthExceeded() if fits:
                raise Violation(NAME, f"{request_id} was refused as too long with {length} tokens")
            case None | ContextLengthExceeded() | InvalidRequest() | Draining():
                pass
            case error:
                raise Violation(NAME, f"{request_id} was refused by {error!r}")

    def _has_room(self, seen: Submitted) -> bool:
        """Whether the queue has room for it. Of what waits, a live request sees the live ones."""
        count = seen.request.params.n
        token_count = count * len(seen.request.prompt)
        # An empty line takes any request that fits the model, however small its bound.
        return seen.waiting_count == 0 or (
            seen.waiting_count + count <= self._settings.max_num_queued_reqs
            and seen.waiting_tokens + token_count <= self._settings.max_num_queued_tokens
        )
