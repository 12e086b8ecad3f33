"""Tests of `jitney.server.admission.keys`: who may call, and how often."""

import pytest

from jitney.config import Key
from jitney.config.keyfile import RATE_MIN
from jitney.core.limits import RETRY_AFTER_S_MAX
from jitney.core.request import Share
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.errors import InvalidRequest
from jitney.server.admission.keys import Bucket, KeyRing, share_of
from jitney.server.error_object import Refusal
from tests.clock_for_tests import HandClock

ENGINE = SchedulerSettings(
    model_len_max=100, max_num_seqs=16, max_num_queued_reqs=1024, max_num_queued_tokens=1_000_000
)


def test_a_bucket_refills_at_its_rate() -> None:
    """Guards the rate: a minute's worth at once, then one for each share of a minute."""
    clock = HandClock()
    bucket = Bucket(60, clock)
    for _ in range(60):
        assert bucket.take() == 0
    assert bucket.take() == pytest.approx(1.0)
    clock.at += 0.5
    assert bucket.take() == pytest.approx(0.5)
    clock.at += 3600
    assert bucket.take(60) == 0
    assert bucket.wait_s() == pytest.approx(1.0)


def test_more_than_a_minutes_worth_is_taken_from_a_full_bucket_and_paid_back() -> None:
    """Guards large requests: they are neither refused for ever nor a way around the rate."""
    clock = HandClock()
    bucket = Bucket(60, clock)
    assert bucket.take(1) == 0
    assert bucket.take(120) == pytest.approx(1.0)
    clock.at += 1.0
    assert bucket.take(120) == 0
    assert bucket.wait_s() == pytest.approx(61.0)
    bucket.give_back(100)
    assert bucket.wait_s(40) == 0
    assert bucket.wait_s(41) == pytest.approx(1.0)
    bucket.give_back(1000)
    assert bucket.take(60) == 0
    assert bucket.take(1) == pytest.approx(1.0)


def test_the_wait_is_never_longer_than_what_callers_can_be_told() -> None:
    """Guards Retry-After, which has a bound: beyond it, it would be a lie."""
    for per_min in (RATE_MIN, 7, 60_000):
        bucket = Bucket(per_min, HandClock())
        assert bucket.take(bucket.amount_max) == 0
        assert bucket.wait_s(bucket.amount_max) <= RETRY_AFTER_S_MAX * (1 + 1e-9)


def test_a_rate_below_one_lets_one_through() -> None:
    """Guards slow rates: one in two minutes is not never."""
    bucket = Bucket(0.5, HandClock())
    assert bucket.take() == 0
    assert bucket.take() == pytest.approx(120.0)


def test_each_key_has_its_own_rate() -> None:
    """Guards one tenant against another that is greedy."""
    clock = HandClock()
    keys = tuple(Key(name=name, secret=f"secret-{name}", requests_per_minute=1) for name in "ab")
    ring = KeyRing(keys, clock, ENGINE)
    ring.caller(b"Bearer secret-a").enter()
    with pytest.raises(Refusal, match="requests per minute"):
        ring.caller(b"Bearer secret-a").enter()
    ring.caller(b"Bearer secret-b").enter()


def test_a_key_is_never_printed() -> None:
    """Guards logs and tracebacks."""
    assert "hidden" not in repr(Key(name="a", secret="hidden-secret"))
    assert Key(name="a", secret="hidden-secret").cache_scope == "a"
    assert Key(name="a", secret="hidden-secret", scope="s").cache_scope == "s"


def test_a_call_for_more_than_a_minutes_worth_is_let_in_once_the_bucket_is_full() -> None:
    """Guards large calls: that the call itself was counted first must not keep them out."""
    clock = HandClock()
    key = Key(name="a", secret="secret-a", requests_per_minute=60)
    caller = KeyRing((key,), clock, ENGINE).caller(b"Bearer secret-a")
    caller.enter()
    caller.reserve(120, 0)
    with pytest.raises(Refusal):
        caller.enter()
    clock.at += 120
    caller.enter()
    with pytest.raises(InvalidRequest, match=r"601 completions.*600 at most"):
        caller.reserve(601, 0)


def test_one_of_several_keys_has_a_share() -> None:
    """Guards the others: half of the queue and a quarter of the places are never one key's."""
    key = Key(name="a", secret="secret-a")
    assert share_of(key, ENGINE, is_alone=False) == Share(512, 500_000, 12)
    assert share_of(key, ENGINE, is_alone=True) is None, "there is nobody to leave something to"
    alone = KeyRing((key,), HandClock(), ENGINE).caller(b"Bearer secret-a")
    assert (alone.share, alone.call_max) == (None, None)
    both = KeyRing((key, Key(name="b", secret="secret-b")), HandClock(), ENGINE)
    assert both.caller(b"Bearer secret-a").share == Share(512, 500_000, 12)
    assert both.caller(b"Bearer secret-a").call_max == 512 + 12 + 32


def test_a_share_may_be_set_for_each_key() -> None:
    """Guards the key file's word, and that a share is never nothing."""
    tiny = Key(name="a", secret="secret-a", queue_share=1e-9, running_share=0.01)
    assert share_of(tiny, ENGINE, is_alone=True) == Share(1, 1, 1)
    whole = Key(name="a", secret="secret-a", queue_share=1.0, running_share=1.0)
    assert share_of(whole, ENGINE, is_alone=False) is None
    half = Key(name="a", secret="secret-a", running_share=1.0)
    assert share_of(half, ENGINE, is_alone=False) == Share(512, 500_000, 16)


def test_a_caller_is_found_by_its_name() -> None:
    """Guards work that waits: it is done for the key that it belongs to, or not at all."""
    keys = (Key(name="one", secret="first-secret"), Key(name="two", secret="other-secret"))
    ring = KeyRing(keys, HandClock(), ENGINE)
    found = ring.named("two")
    assert found is not None
    assert found is ring.caller(b"Bearer other-secret")
    assert ring.named("three") is None
    assert ring.named("") is None
    anyone = KeyRing((), HandClock(), ENGINE)
    assert anyone.named("") is anyone.caller(b"")
    assert anyone.named("one") is None
