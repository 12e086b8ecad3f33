"""Observers get the records of ticks and requests as they happen.

An observer is a callable, called on the engine thread without a lock, so it must be quick. One that
raises never hurts the tick, and gets the next record all the same: whoever keeps accounts must not
lose them to one mistake. Failures are counted; of one observer's, the first, the second, the
fourth, the eighth and so on are logged, so that no log fills up.
"""

import logging
import threading
from dataclasses import dataclass

from jitney.records import Observer, Record, TickRecord

_log = logging.getLogger("jitney.engine")


@dataclass(slots=True)
class _Listener:
    """One observer, and how often it failed."""

    observer: Observer
    failed_count: int = 0

    def fail(self) -> None:
        """Called where its exception is being handled."""
        self.failed_count += 1
        if self.failed_count & (self.failed_count - 1) == 0:
            said = "an observer failed (%d so far) and goes on: %r"
            _log.warning(said, self.failed_count, self.observer, exc_info=True)


class Observers:
    """Those who get the records. `add` and `remove` may be called from any thread."""

    def __init__(self) -> None:
        # Replaced, never changed, so that the engine thread can walk it without a lock.
        self._listeners: tuple[_Listener, ...] = ()
        self._changing = threading.Lock()
        self.failed_count = 0
        """How often any of them failed."""

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, observer: Observer) -> None:
        """Give this one every record from here on."""
        with self._changing:
            self._listeners = (*self._listeners, _Listener(observer))

    def remove(self, observer: Observer) -> None:
        """Give this one no more; unknown ones are ignored."""
        with self._changing:
            self._listeners = tuple(each for each in self._listeners if each.observer != observer)

    def tell(self, record: Record) -> None:
        """Engine thread: pass a record to everyone."""
        for listener in self._listeners:
            try:
                listener.observer(record)
            except Exception:
                self.failed_count += 1
                listener.fail()


def log_batch_composition(record: Record) -> None:
    """An observer that writes one line per tick: who was in the batch, with which span."""
    if not isinstance(record, TickRecord):
        return
    members = " ".join(
        f"{each.request_id}.{each.index}@{each.slot}[{each.start}:{each.start + each.length}]"
        for each in record.members
    )
    _log.info(
        "tick %d: %d entries, %d decode + %d prefill tokens, %d waiting, %d kv, %.1f ms: %s",
        record.number,
        record.batch_size,
        record.decode_tokens,
        record.prefill_tokens,
        record.queue_depth,
        record.kv_used,
        record.forward_ms,
        members,
    )
