"""Watches the engine's ticks and says how it stands, for the status bar.

`take` is called on the engine thread, `status` on the main thread.
"""

import threading
from collections import deque

from jitney.cli.board import Status
from jitney.cli.figures import rate
from jitney.engine.clock import SystemClock
from jitney.engine.engine import Engine
from jitney.engine.records import Record, TickRecord

WINDOW_S = 1.0
"""Speed 'now' is that of the last second."""


class Meter:
    """Adds up ticks from the moment it is made."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._clock = SystemClock()
        self._started_at = self._clock.now()
        self._lock = threading.Lock()
        self._recent: deque[TickRecord] = deque()
        self._last: TickRecord | None = None
        self._tokens = 0

    @property
    def elapsed_s(self) -> float:
        """Since it was made."""
        return self._clock.now() - self._started_at

    def take(self, record: Record) -> None:
        """The observer: note a tick."""
        if not isinstance(record, TickRecord):
            return
        with self._lock:
            self._last = record
            self._tokens += record.sampled_tokens
            self._recent.append(record)
            while self._recent[0].at < record.at - WINDOW_S:
                self._recent.popleft()

    def status(self) -> Status:
        """How it stands now."""
        now = self._clock.now()
        with self._lock:
            last, tokens = self._last, self._tokens
            recent = sum(each.sampled_tokens for each in self._recent if each.at > now - WINDOW_S)
        snapshot = self._engine.snapshot()
        elapsed_s = now - self._started_at
        return Status(
            slots_max=self._engine.backend.traits.slots_max,
            running=snapshot.running_count,
            cached=snapshot.cached_count,
            decode_tokens=0 if last is None else last.decode_tokens,
            prefill_tokens=0 if last is None else last.prefill_tokens,
            kv_used=snapshot.kv_used,
            kv_cached=snapshot.kv_cached,
            kv_tokens=self._engine.backend.traits.kv_tokens,
            queued=snapshot.waiting_count,
            rate_now=rate(recent, min(WINDOW_S, elapsed_s)),
            rate_mean=rate(tokens, elapsed_s),
            elapsed_s=elapsed_s,
        )
