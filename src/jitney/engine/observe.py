"""Observers get the records of ticks and requests as they happen.

An observer is a callable. It is called on the engine thread without a lock, so it must be quick. If
it raises, the tick goes on, and it still gets the next record: one mistake must not end its
accounts. All failures are counted. The first, second, fourth, eighth failure (and so on) of an
observer is logged, so that the log does not fill up.
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


class Observers:
    """All observers. `add` and `remove` may be called from any thread."""

    def __init__(self) -> None:
        # Replaced, never changed, so that the engine thread can read it without a lock.
        self._listeners: tuple[_Listener, ...] = ()
        self._changing = threading.Lock()
        self.failed_count = 0
        """Failures of all observers."""

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, observer: Observer) -> None:
        """Give this observer every record from now on."""
        with self._changing:
            self._listeners = (*self._listeners, _Listener(observer))

    def remove(self, observer: Observer) -> None:
        """Give this observer no more records. An unknown one is ignored."""
        with self._changing:
            self._listeners = tuple(each for each in self._listeners if each.observer != observer)

    def tell(self, record: Record) -> None:
        """Engine thread: pass a record to all observers."""
        for listener in self._listeners:
            try:
                listener.observer(record)
            except Exception:
                self.failed_count += 1
                listener.failed_count = count = listener.failed_count + 1
                if count.bit_count() == 1:
                    text = "An observer failed (%d so far) and goes on: %r"
                    _log.warning(text, count, listener.observer, exc_info=True)


def log_batch_composition(record: Record) -> None:
    """An observer that logs one line per tick: the sequences of the batch and their spans."""
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
