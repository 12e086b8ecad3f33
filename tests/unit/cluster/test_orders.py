"""What an order says of the time that is left, and what the router is told with it."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from jitney.core.request import Request
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Delta
from jitney.engine.mailbox import Mailbox
from jitney.errors import DeadlineExceeded
from jitney_cluster.accounts import MovingRequest
from jitney_cluster.orders import Orders
from jitney_cluster.progress import Progress
from jitney_cluster.replica_messages import Address, Run, decode_run
from jitney_cluster.routing import Head, Sought

MakeRequest = Callable[..., Request]
HERE = Address("here", "127.0.0.1", 1, "secret")


def orders_of(**limits: float) -> Orders:
    return Orders("model", 1, SchedulerSettings(model_len_max=512, **limits))  # type: ignore[arg-type]


def live_of(request: Request) -> MovingRequest:
    """A request that came at 10 and was sent to the fleet at 11."""
    progress = Progress(request, 1.0, keeps_logprobs=False)
    live = MovingRequest(request, Mailbox(), progress, 10.0, 11.0)
    live.head = Head(len(request.prompt))
    return live


def ordered(orders: Orders, live: MovingRequest, now: float) -> tuple[Run, Sought]:
    frame, sought = orders.next(live, HERE, (), now)
    return decode_run(frame), sought


def wait_of(order: Run, now: float) -> float:
    """When the wait for a first slot ends on the replica, as its scheduler counts."""
    limit_s = order.wanted.queue_timeout_s
    assert limit_s is not None
    return now - (order.wanted.waited_s or 0.0) + limit_s


@pytest.mark.parametrize("is_accepted", [False, True])
@pytest.mark.parametrize("is_own", [False, True])
def test_the_limit_for_waiting_does_not_begin_anew_at_a_replica(
    make_request: MakeRequest, is_own: bool, is_accepted: bool
) -> None:
    """Guards `queue_timeout_s`: a request that waited at its ingress, or on a replica that was
    lost, had the whole limit again."""
    request = replace(make_request(), queue_timeout_s=5.0) if is_own else make_request()
    orders = orders_of(queue_timeout_s=60.0 if is_own else 5.0)
    live = live_of(request)
    live.is_accepted = is_accepted
    for now in (11.0, 13.0, 15.5):
        order, _ = ordered(orders, live, now)
        assert wait_of(order, now) == pytest.approx(16.0)
    with pytest.raises(DeadlineExceeded, match="did not run within 5 s"):
        orders.next(live, HERE, (), 16.0)


def test_one_that_had_a_slot_does_not_wait_for_its_first(make_request: MakeRequest) -> None:
    """Guards those that lost their replica before their first token: their wait was over."""
    orders = orders_of(queue_timeout_s=5.0)
    live = live_of(make_request())
    live.is_accepted = live.is_started = True
    order, _ = ordered(orders, live, 100.0)
    assert order.wanted.queue_timeout_s == math.inf
    live.progress.take(Delta(index=0, text="a", tokens=(5,)), 1.0)
    order, _ = ordered(orders, live, 101.0)
    assert order.wanted.queue_timeout_s is None
    assert order.wanted.resumed == ((5,),)


def test_without_a_limit_nothing_is_sent(make_request: MakeRequest) -> None:
    order, _ = ordered(orders_of(), live_of(make_request()), 1000.0)
    assert (order.wanted.queue_timeout_s, order.wanted.request_timeout_s) == (None, None)


def test_the_router_is_told_once_whose_first_token_came(make_request: MakeRequest) -> None:
    """Guards routing: a prompt that is computed would count until its request ends."""
    orders = orders_of()
    first, second = live_of(make_request()), live_of(make_request())
    _, sought = ordered(orders, first, 11.0)
    assert (sought.number, sought.begun) == (1, ())
    orders.begin(first)
    assert ordered(orders, second, 11.0)[1].begun == (), "it is on its way: nobody has made a token"
    first.replica = second.replica = "a"
    for _ in range(2):
        orders.begin(first)
    assert ordered(orders, second, 11.0)[1].begun == (("a", 1),)
    assert ordered(orders, first, 11.0)[1].begun == ()
    first.replica = "b"
    orders.begin(first)
    assert ordered(orders, second, 11.0)[1].begun == (("b", 4),), "another attempt of it"
