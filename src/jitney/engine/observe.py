"""Who wants to know: observers get the records of ticks and requests as they happen.

No metrics library, no locks held: an observer is a callable, called on the engine thread, so it
must be quick. One that raises is dropped with a warning and never hurts the tick.
"""

import logging
import threading
from collections.abc import Callable

from jitney.engine.records import Record, TickRecord

_log = logging.getLogger("jitney.engine")

Observer = Callable[[Record], None]


class Observers:
    """Those who are told. `add` and `remove` may be called from any thread."""

    def __init__(self) -> None:
        # Replaced, never changed, so that the engine thread can walk it without a lock.
        self._listeners: tuple[Observer, ...] = ()
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._listeners)

    def add(self, observer: Observer) -> None:
        """Tell this one of everything from here on."""
        with self._changing:
            self._listeners = (*self._listeners, observer)

    def remove(self, observer: Observer) -> None:
        """Tell this one no more; unknown ones are ignored."""
        with self._changing:
            self._listeners = tuple(each for each in self._listeners if each != observer)

    def tell(self, record: Record) -> None:
        """Engine thread: pass a record to everyone."""
        for observer in self._listeners:
            try:
                observer(record)
            except Exception:
                self.remove(observer)
                _log.warning("an observer failed and was dropped: %r", observer, exc_info=True)


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
