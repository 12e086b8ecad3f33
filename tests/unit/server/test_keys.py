"""Tests of `jitney.server.keys`: who may call, and how often."""

from dataclasses import dataclass

import pytest

from jitney.server.errors import Refusal
from jitney.server.keys import Bucket, KeyRing
from jitney.server.settings import Key


@dataclass
class HandClock:
    """Time that moves when it is told to."""

    at: float = 0.0

    def now(self) -> float:
        return self.at


def test_a_bucket_refills_at_its_rate() -> None:
    """Guards the rate: a minute's worth at once, then one for each share of a minute."""
    clock = HandClock()
    bucket = Bucket(60, clock)
    for _ in range(60):
        assert bucket.wait_s() == 0
        bucket.take(1)
    assert bucket.wait_s() == pytest.approx(1.0)
    clock.at += 0.5
    assert bucket.wait_s() == pytest.approx(0.5)
    clock.at += 3600
    bucket.take(60)
    assert bucket.wait_s() == pytest.approx(1.0)


def test_a_bucket_may_be_overdrawn_and_pays_back() -> None:
    """Guards tokens, which are known only when they are used."""
    clock = HandClock()
    bucket = Bucket(60, clock)
    bucket.take(120)
    assert bucket.wait_s() == pytest.approx(61.0)


def test_a_rate_below_one_lets_one_through() -> None:
    """Guards slow rates: one in two minutes is not never."""
    bucket = Bucket(0.5, HandClock())
    assert bucket.wait_s() == 0
    bucket.take(1)
    assert bucket.wait_s() == pytest.approx(120.0)


def test_a_key_is_found_by_its_secret_only() -> None:
    """Guards the comparison: a part of a key, or one and a bit, opens nothing."""
    ring = KeyRing(
        (Key(name="a", secret="secret-a"), Key(name="b", secret="secret-b")), HandClock()
    )
    assert ring.caller(b"Bearer secret-b").name == "b"
    assert ring.caller(b"bearer  secret-a ").name == "a"
    for given in (None, b"", b"Bearer", b"Bearer secret", b"Bearer secret-aa", b"Basic secret-a"):
        with pytest.raises(Refusal) as refused:
            ring.caller(given)
        assert refused.value.status == 401
        assert "www-authenticate" in refused.value.headers


def test_without_keys_everyone_is_let_in() -> None:
    """Guards the default on one's own machine."""
    ring = KeyRing((), HandClock())
    assert ring.is_open
    assert ring.caller(None).name == ""
    ring.caller(b"Bearer whatever").enter()


def test_each_key_has_its_own_rate() -> None:
    """Guards one tenant against another that is greedy."""
    clock = HandClock()
    keys = tuple(Key(name=name, secret=f"secret-{name}", requests_per_min=1) for name in "ab")
    ring = KeyRing(keys, clock)
    ring.caller(b"Bearer secret-a").enter()
    with pytest.raises(Refusal, match="requests per minute"):
        ring.caller(b"Bearer secret-a").enter()
    ring.caller(b"Bearer secret-b").enter()


def test_a_key_is_never_printed() -> None:
    """Guards logs and tracebacks."""
    assert "hidden" not in repr(Key(name="a", secret="hidden-secret"))
    assert Key(name="a", secret="hidden-secret").cache_scope == "a"
    assert Key(name="a", secret="hidden-secret", scope="s").cache_scope == "s"
