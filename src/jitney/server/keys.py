"""Who calls: keys compared in constant time, and their rates kept.

Event loop; tokens are counted from the engine thread too, so a bucket has a lock.
"""

import hashlib
import hmac
import threading
from dataclasses import dataclass

from jitney.engine.clock import Clock
from jitney.server.errors import AUTHENTICATION, RATE, Refusal, retry_headers
from jitney.server.settings import Key

SECRET_BYTES_MAX = 4096
_CHALLENGE = {"www-authenticate": 'Bearer realm="jitney"'}


class Bucket:
    """A rate per minute with a minute's worth of burst. One use may overdraw it."""

    def __init__(self, per_min: float, clock: Clock) -> None:
        self._per_s = per_min / 60.0
        self._full = max(per_min, 1.0)
        self._clock = clock
        self._level = self._full
        self._filled_at = clock.now()
        self._lock = threading.Lock()

    def wait_s(self) -> float:
        """Seconds until one is there; 0 when it is."""
        with self._lock:
            self._fill()
            return max(1.0 - self._level, 0.0) / self._per_s

    def take(self, amount: float) -> None:
        """Use this much, though it may not be there."""
        with self._lock:
            self._fill()
            self._level -= amount

    def _fill(self) -> None:
        now = self._clock.now()
        self._level = min(self._full, self._level + (now - self._filled_at) * self._per_s)
        self._filled_at = now


@dataclass(slots=True)
class Caller:
    """A key with what is left of its rates; without a key, anyone."""

    key: Key | None = None
    requests: Bucket | None = None
    tokens: Bucket | None = None

    @property
    def name(self) -> str:
        """The key's name; empty for anyone."""
        return self.key.name if self.key is not None else ""

    def enter(self) -> None:
        """Count one request. Raises Refusal with status 429."""
        for bucket, what in ((self.requests, "requests"), (self.tokens, "tokens")):
            wait_s = bucket.wait_s() if bucket is not None else 0.0
            if wait_s > 0:
                raise Refusal(
                    429,
                    f"This key has used up its {what} per minute; try again in {wait_s:.1f} s.",
                    code="rate_limit_exceeded",
                    type=RATE,
                    headers=retry_headers(wait_s),
                )
        if self.requests is not None:
            self.requests.take(1.0)

    def use_tokens(self, count: int) -> None:
        """Count tokens that were computed for this key. Any thread."""
        if self.tokens is not None:
            self.tokens.take(count)


class KeyRing:
    """All keys. Only their digests are compared, so that nothing can be learnt from the time."""

    def __init__(self, keys: tuple[Key, ...], clock: Clock) -> None:
        self._callers = [(_digest(key.secret.encode()), _caller(key, clock)) for key in keys]
        self._anyone = Caller()

    @property
    def is_open(self) -> bool:
        """Whether no key is needed."""
        return not self._callers

    def caller(self, authorization: bytes | None) -> Caller:
        """Whose header this is. Raises Refusal with status 401."""
        if self.is_open:
            return self._anyone
        scheme, _, secret = (authorization or b"").partition(b" ")
        secret = secret.strip()
        if scheme.lower() != b"bearer" or not secret:
            raise Refusal(
                401,
                "A key is needed: send it as `Authorization: Bearer KEY`.",
                code="missing_api_key",
                type=AUTHENTICATION,
                headers=_CHALLENGE,
            )
        digest = _digest(secret[: SECRET_BYTES_MAX + 1])
        found = None
        # Every key is looked at, whether or not one has matched.
        for known, caller in self._callers:
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise Refusal(
                401,
                "The key is not known here.",
                code="invalid_api_key",
                type=AUTHENTICATION,
                headers=_CHALLENGE,
            )
        return found


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def _caller(key: Key, clock: Clock) -> Caller:
    return Caller(
        key,
        None if key.requests_per_min is None else Bucket(key.requests_per_min, clock),
        None if key.tokens_per_min is None else Bucket(key.tokens_per_min, clock),
    )
