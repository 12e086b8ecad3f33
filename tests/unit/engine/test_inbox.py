"""The way in: bounds, order, waking, and the end."""

import threading
from functools import partial

import pytest

from jitney.core.request import Request, RequestId
from jitney.engine.loop import Action, Inbox, Stop, Submit
from jitney.engine.mailbox import Mailbox
from jitney.errors import EngineStopped, QueueFull
from tests.unit.engine.worlds import make_request

WAIT_S = 100.0


def submit(request: Request) -> Submit:
    return Submit(request, Mailbox(), 0.0)


def ignore(word: str, number: int = 0) -> None:
    """What the commands of these tests call: they are only compared."""


def cancel(inbox: Inbox, name: str) -> Action:
    """Send a cancel of this request, whoever has it; what is sent."""
    request_id = RequestId(name)
    command = partial(ignore, "cancel")
    inbox.cancel(request_id, None, command)
    return command


def test_commands_are_taken_in_order_of_arrival() -> None:
    """Guards against a cancel that overtakes the submission it is about."""
    inbox = Inbox(4)
    first = submit(make_request())
    inbox.submit(first)
    cancelled = cancel(inbox, first.request.id)
    drain = partial(ignore, "drain")
    inbox.send(drain)
    assert inbox.take() == [first, cancelled, drain]
    assert inbox.take() == []


def test_a_full_inbox_refuses_submissions_but_not_cancels() -> None:
    """Guards against memory without a bound, and against requests that cannot be ended."""
    inbox = Inbox(1)
    inbox.submit(submit(make_request(id="0")))
    with pytest.raises(QueueFull) as refusal:
        inbox.submit(submit(make_request()))
    assert refusal.value.retry_after_s > 0
    cancel(inbox, "0")
    inbox.take()
    inbox.submit(submit(make_request()))


def test_repeated_cancels_are_one_command() -> None:
    """Guards against a client that fills memory by cancelling again and again."""
    inbox = Inbox(1)
    sent = [cancel(inbox, "a") for _ in range(100)]
    assert inbox.take() == sent[:1]
    assert [cancel(inbox, "a")] == inbox.take()


def test_of_many_pauses_and_resumes_the_last_one_counts() -> None:
    """Guards memory against a client that pauses and resumes faster than ticks run."""
    inbox = Inbox(1)
    for number in range(100):
        resume = partial(ignore, "resume", number)
        reprioritise = partial(ignore, "reprioritise", number)
        inbox.send_last("pause", partial(ignore, "pause", number))
        inbox.send_last("pause", resume)
        inbox.send_last("class", reprioritise)
    assert inbox.take() == [resume, reprioritise]
    assert inbox.take() == []


def test_who_waits_for_a_command_that_is_not_run_is_told() -> None:
    """Guards who asked for a pause: it would wait for an answer that nobody gives."""
    inbox, dropped = Inbox(1), list[int]()
    for number in range(3):
        inbox.send_last("pause", partial(ignore, "pause"), partial(dropped.append, number))
    assert dropped == [0, 1]
    inbox.take()
    inbox.send_last("pause", partial(ignore, "pause"), partial(dropped.append, 3))
    inbox.close(EngineStopped("gone"))
    inbox.send_last("pause", partial(ignore, "pause"), partial(dropped.append, 4))
    assert dropped == [0, 1, 3, 4]


def test_a_command_wakes_the_one_who_waits() -> None:
    """Guards against a request that waits for a sleeping engine to wake by itself."""
    inbox = Inbox(1)
    waiter = threading.Thread(target=lambda: inbox.wait(60.0), daemon=True)
    waiter.start()
    inbox.send(Stop(drains=False))
    waiter.join(WAIT_S)
    assert not waiter.is_alive()


def test_a_closed_inbox_gives_back_what_is_left_and_refuses_the_rest() -> None:
    """Guards against a submission that nobody will ever look at (invariant 1)."""
    inbox = Inbox(4)
    left = submit(make_request())
    inbox.submit(left)
    assert inbox.close(EngineStopped("gone")) == [left]
    with pytest.raises(EngineStopped, match="gone"):
        inbox.submit(submit(make_request()))
    cancel(inbox, "a")
    inbox.send(partial(ignore, "drain"))
    assert inbox.take() == []
