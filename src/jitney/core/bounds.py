"""Checks that the queue, and the tenant's share of it, have room for a new request.

Called by the scheduler only.

Tests: tests/unit/core/test_scheduler.py.
"""

from jitney.core.counters import Counters
from jitney.core.queue import WaitQueue
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence
from jitney.errors import QueueFull


def check_room(
    queue: WaitQueue,
    sequences: list[Sequence],
    settings: SchedulerSettings,
    counters: Counters,
    retry_s: float,
) -> None:
    """Raise QueueFull if there is no room for the sequences of a new request."""
    _check_share(queue, sequences, counters, retry_s)
    count = queue.count + len(sequences)
    token_count = queue.token_count + sum(each.known_count for each in sequences)
    requests_max, tokens_max = settings.max_num_queued_reqs, settings.max_num_queued_tokens
    # An empty queue takes any request that fits the model, even above the bounds.
    if queue.count == 0 or (count <= requests_max and token_count <= tokens_max):
        return
    counters.add("queue_full")
    raise QueueFull(
        f"{queue.count} requests with {queue.token_count} tokens are waiting already "
        f"(the limits are {requests_max} and {tokens_max}); try again in {retry_s:.1f} s.",
        retry_s,
    )


def _check_share(
    queue: WaitQueue, sequences: list[Sequence], counters: Counters, retry_s: float
) -> None:
    share, tenant = sequences[0].request.share, sequences[0].request.tenant
    if share is None or queue.shares.has_room(sequences):
        return
    counters.add("share_full")
    held = queue.shares.held(tenant)
    raise QueueFull(
        f"{held.waiting_count} requests of this caller with {held.waiting_tokens} tokens "
        f"are waiting already, and its share of the queue is {share.waiting_max} and "
        f"{share.waiting_tokens_max}; try again in {retry_s:.1f} s.",
        retry_s,
    )
