"""The way in: bounds, order, waking, and the end."""

import threading
from collections.abc import Callable

import pytest

from jitney.core.request import Priority, Request, RequestId
from jitney.engine.inbox import Cancel, Drain, Inbox, Pause, Reprioritise, Resume, Stop, Submit
from jitney.engine.mailbox import Mailbox
from jitney.errors import EngineStopped, QueueFull

WAIT_S = 10.0
MakeRequest = Callable[..., Request]


def submit(request: Request) -> Submit:
    return Submit(request, Mailbox(), 0.0)


def test_commands_are_taken_in_order_of_arrival(make_request: MakeRequest) -> None:
    """Guards against a cancel that overtakes the submission it is about."""
    inbox = Inbox(4)
    first = submit(make_request())
    inbox.submit(first)
    inbox.cancel(Cancel(first.request.id))
    inbox.send(Drain())
    assert inbox.take() == [first, Cancel(first.request.id), Drain()]
    assert inbox.take() == []


def test_a_full_inbox_refuses_submissions_but_not_cancels(make_request: MakeRequest) -> None:
    """Guards against memory without a bound, and against requests that cannot be ended."""
    inbox = Inbox(1)
    inbox.submit(submit(make_request()))
    with pytest.raises(QueueFull) as refusal:
        inbox.submit(submit(make_request()))
    assert refusal.value.retry_after_s > 0
    inbox.cancel(Cancel(RequestId("0")))
    inbox.take()
    inbox.submit(submit(make_request()))


def test_repeated_cancels_are_one_command() -> None:
    """Guards against a client that fills memory by cancelling again and again."""
    inbox = Inbox(1)
    for _ in range(100):
        inbox.cancel(Cancel(RequestId("a")))
    assert inbox.take() == [Cancel(RequestId("a"))]
    inbox.cancel(Cancel(RequestId("a")))
    assert inbox.take() == [Cancel(RequestId("a"))]


def test_of_many_pauses_and_resumes_the_last_one_counts() -> None:
    """Guards memory against a client that pauses and resumes faster than ticks run."""
    inbox, request_id = Inbox(1), RequestId("a")
    for _ in range(100):
        inbox.steer(Pause(request_id, None))
        inbox.steer(Resume(request_id, None))
        inbox.steer(Reprioritise(request_id, None, Priority.LOW))
    inbox.steer(Reprioritise(request_id, None, Priority.HIGH))
    assert inbox.take() == [
        Resume(request_id, None),
        Reprioritise(request_id, None, Priority.HIGH),
    ]
    assert inbox.take() == []


def test_a_command_wakes_the_one_who_waits() -> None:
    """Guards against a request that waits for a sleeping engine to wake by itself."""
    inbox = Inbox(1)
    waiter = threading.Thread(target=lambda: inbox.wait(60.0), daemon=True)
    waiter.start()
    inbox.send(Stop(drains=False))
    waiter.join(WAIT_S)
    assert not waiter.is_alive()


def test_a_closed_inbox_gives_back_what_is_left_and_refuses_the_rest(
    make_request: MakeRequest,
) -> None:
    """Guards against a submission that nobody will ever look at (invariant 1)."""
    inbox = Inbox(4)
    left = submit(make_request())
    inbox.submit(left)
    assert inbox.close(EngineStopped("gone")) == [left]
    with pytest.raises(EngineStopped, match="gone"):
        inbox.submit(submit(make_request()))
    inbox.cancel(Cancel(RequestId("a")))
    inbox.send(Drain())
    assert inbox.take() == []
