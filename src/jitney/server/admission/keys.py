"""Finds the caller by its key, in constant time, and keeps each key's rates.

A request reserves the most tokens that it may use before it is accepted. When it has ended, it
gives back what it did not use. However many come at once, one of them at most overdraws a key's
rate. Event loop; the engine thread gives tokens back, so a bucket has a lock.

Where there are several keys, each has a share of the queue and of the slots (`share_of`), so no
key can take everything.
"""

import hashlib
import hmac
import threading
from dataclasses import dataclass

from jitney.config import Key
from jitney.core.limits import QUEUE_SHARE, RETRY_AFTER_S_MAX, RUNNING_SHARE
from jitney.core.request import Share
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.clock import Clock
from jitney.errors import InvalidRequest
from jitney.server import limits
from jitney.server.error_object import Refusal, retry_headers

SECRET_BYTES_MAX = 4096
_CHALLENGE = {"www-authenticate": 'Bearer realm="jitney"'}


class Bucket:
    """A rate per minute with a minute's worth of burst.

    Only a full bucket gives more than that, and is then overdrawn. `amount_max` is the most it
    gives at once, so that it is full again within RETRY_AFTER_S_MAX.
    """

    def __init__(self, per_min: float, clock: Clock) -> None:
        self.per_min = per_min
        self._per_s = per_min / 60.0
        self._full = max(per_min, 1.0)
        self.amount_max = max(self._per_s * RETRY_AFTER_S_MAX, 1.0)
        self._clock = clock
        self._level = self._full
        self._filled_at = clock.now()
        self._lock = threading.Lock()

    def wait_s(self, amount: float = 1.0) -> float:
        """Seconds until this much may be taken; 0 if it may be taken now."""
        with self._lock:
            return self._missing_s(amount)

    def take(self, amount: float = 1.0) -> float:
        """Take this much and return 0, or take nothing and return the seconds until it is there."""
        assert 0 < amount <= self.amount_max, amount
        with self._lock:
            missing_s = self._missing_s(amount)
            if missing_s == 0:
                self._level -= amount
            return missing_s

    def give_back(self, amount: float) -> None:
        """Put back what was taken and not used."""
        assert amount >= 0, amount
        with self._lock:
            self._fill()
            self._level = min(self._full, self._level + amount)

    def _missing_s(self, amount: float) -> float:
        self._fill()
        return max(min(amount, self._full) - self._level, 0.0) / self._per_s

    def _fill(self) -> None:
        now = self._clock.now()
        self._level = min(self._full, self._level + (now - self._filled_at) * self._per_s)
        self._filled_at = now


@dataclass(slots=True)
class Caller:
    """A key with what is left of its rates, and its share; without a key, anyone.

    `call_count` is how many of its calls are being served.
    """

    key: Key | None = None
    requests: Bucket | None = None
    tokens: Bucket | None = None
    share: Share | None = None
    call_count: int = 0

    @property
    def name(self) -> str:
        """The key's name; empty for anyone."""
        return self.key.name if self.key is not None else ""

    @property
    def call_max(self) -> int | None:
        """How many of its calls may be served at once: its share, and some on their way."""
        if self.share is None:
            return None
        held_max = self.share.waiting_max + self.share.running_max
        return held_max + limits.CALLS_UNSENT_MAX // 2

    def enter(self) -> None:
        """Count one request. Raises Refusal with status 429.

        A caller without any token left is refused before its body is read.
        """
        if self.tokens is not None:
            _refuse_until(self.tokens.wait_s(), "tokens")
        if self.requests is not None:
            _refuse_until(self.requests.take(), "requests")

    def reserve(self, completion_count: int, token_count: int) -> None:
        """Count all completions of a call, and reserve the most tokens that they may use.

        `enter` has counted the first completion; a refused call counts as one. Raises Refusal with
        status 429, and InvalidRequest for what can never be accepted.
        """
        more, requests, tokens = completion_count - 1, self.requests, self.tokens
        if requests is not None and completion_count > requests.amount_max:
            raise InvalidRequest(
                f"The call asks for {completion_count} completions. This key's rate is "
                f"{requests.per_min:g} per minute, and one call may take {requests.amount_max:g} "
                "at most; lower n, or send fewer prompts.",
                "n",
            )
        if tokens is not None and token_count > tokens.amount_max:
            raise InvalidRequest(
                f"The request may take {token_count} tokens, its prompt included. This key's rate "
                f"is {tokens.per_min:g} per minute, and one request may take "
                f"{tokens.amount_max:g} at most; give a lower max_tokens.",
                "max_tokens",
            )
        if requests is not None and more:
            requests.give_back(1)
            wait_s = requests.take(completion_count)
            if wait_s > 0:
                requests.take()
            _refuse_until(wait_s, "requests")
        wait_s = 0.0 if tokens is None else tokens.take(token_count)
        if wait_s > 0 and requests is not None:
            requests.give_back(more)
        _refuse_until(wait_s, "tokens")

    def give_back_tokens(self, count: int) -> None:
        """Give back reserved tokens that were not used. Any thread."""
        if self.tokens is not None:
            self.tokens.give_back(count)


class KeyRing:
    """All keys. Only digests are compared, so the time of a check tells nothing about a key."""

    def __init__(self, keys: tuple[Key, ...], clock: Clock, engine: SchedulerSettings) -> None:
        self._callers: list[tuple[bytes, Caller]] = []
        for key in keys:
            requests = _bucket(key.requests_per_minute, clock)
            tokens = _bucket(key.tokens_per_minute, clock)
            share = share_of(key, engine, is_alone=len(keys) == 1)
            caller = Caller(key, requests, tokens, share)
            self._callers.append((_digest(key.secret.encode()), caller))
        self._anyone = Caller()

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._callers

    @property
    def known(self) -> tuple[Key, ...]:
        """All of them."""
        return tuple(caller.key for _, caller in self._callers if caller.key is not None)

    def named(self, name: str) -> Caller | None:
        """The caller of the key with this name; without keys, anyone, whose name is empty."""
        if self.is_open:
            return self._anyone if name == self._anyone.name else None
        return next((each for _, each in self._callers if each.name == name), None)

    def caller(self, authorization: bytes, key: bytes = b"") -> Caller:
        """The caller with this header `Authorization`, or else with this `x-api-key`. Raises
        Refusal with status 401."""
        if self.is_open:
            return self._anyone
        scheme, _, secret = authorization.partition(b" ")
        secret = secret.strip() if scheme.lower() == b"bearer" else b""
        secret = secret or key.strip()
        if not secret:
            message = "A key is needed: send it as `Authorization: Bearer KEY`, or as `x-api-key`."
            raise Refusal("missing_api_key", message, headers=_CHALLENGE)
        digest = _digest(secret[: SECRET_BYTES_MAX + 1])
        found = None
        # Compare every key, even after a match.
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise Refusal("invalid_api_key", "The key is not known here.", headers=_CHALLENGE)
        return found


def share_of(key: Key, engine: SchedulerSettings, *, is_alone: bool) -> Share | None:
    """How much of the engine a key may use; None is everything."""
    queue = key.queue_share or (1.0 if is_alone else QUEUE_SHARE)
    running = key.running_share or (1.0 if is_alone else RUNNING_SHARE)
    if queue == running == 1.0:
        return None
    return Share(
        waiting_max=max(1, int(queue * engine.max_num_queued_reqs)),
        waiting_tokens_max=max(1, int(queue * engine.max_num_queued_tokens)),
        running_max=max(1, int(running * engine.max_num_seqs)),
    )


def _refuse_until(wait_s: float, what: str) -> None:
    if wait_s > 0:
        used_up = f"This key's {what} per minute are used up, or set aside for what it runs"
        message = f"{used_up}; try again in {wait_s:.1f} s."
        raise Refusal("rate_limit_exceeded", message, headers=retry_headers(wait_s))


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _bucket(per_min: float | None, clock: Clock) -> Bucket | None:
    return None if per_min is None else Bucket(per_min, clock)
