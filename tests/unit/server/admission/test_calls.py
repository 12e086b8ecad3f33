"""Tests of `jitney.server.admission.calls`: what a call takes up, and that it gives it back."""

import pytest

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.request import Share
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.errors import Draining, QueueFull
from jitney.server import limits
from jitney.server.admission.calls import CallPlaces
from jitney.server.admission.keys import Caller
from jitney.server.error_object import Refusal


@pytest.fixture
def admission(monkeypatch: pytest.MonkeyPatch) -> CallPlaces:
    """For two calls; bodies of 100 bytes together, of each of which ten are spared."""
    monkeypatch.setattr(limits, "CALLS_UNSENT_MAX", 0)
    monkeypatch.setattr(limits, "BODY_BYTES_SPARED", 10)
    settings = SchedulerSettings(model_len_max=100, max_num_seqs=1, max_num_queued_reqs=1)
    made = CallPlaces(Engine(FakeBackend(FakeSettings()), settings), body_limit=100)
    made.bodies_bytes_max = 100
    return made


def test_a_call_counts_once_its_body_is_there_and_until_it_leaves(admission: CallPlaces) -> None:
    """Guards the places: slow bodies take none, and nobody keeps one after the end."""
    caller = Caller()
    with admission.place(caller) as first, admission.place(caller), admission.place(caller) as last:
        first.take()
        assert (admission.call_count, caller.call_count) == (1, 1)
        last.take()
        with pytest.raises(QueueFull, match="2 requests are being served"):
            admission.check(caller)
    assert (admission.call_count, caller.call_count) == (0, 0)


def test_a_share_is_a_bound_of_its_own(admission: CallPlaces) -> None:
    """Guards other keys: one of several is refused though the server has room."""
    caller = Caller(share=Share(1, 1, 1), call_count=2)
    with pytest.raises(QueueFull, match="of this key"):
        admission.check(caller)
    admission.check(Caller())


def test_bytes_beyond_the_first_are_counted_until_the_end(admission: CallPlaces) -> None:
    """Guards the memory: bodies together are bounded, and an ordinary one is always taken."""
    with admission.place(Caller()) as large, admission.place(Caller()) as small:
        large.hold(60)
        large.hold(50)
        small.hold(10)
        with pytest.raises(Refusal) as refused:
            small.hold(1)
        assert (refused.value.status, refused.value.code) == (503, "too_many_bytes")
        assert admission.held_bytes == 100
    assert admission.held_bytes == 0


def test_a_drain_refuses_bodies_that_were_on_their_way(admission: CallPlaces) -> None:
    """Guards the shutdown: a body that arrives after the signal is no new work."""
    with admission.place(Caller()) as place:
        admission.is_draining = True
        with pytest.raises(Draining):
            place.take()
