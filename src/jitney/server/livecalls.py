"""The calls that are being answered, so that their callers can steer them. Event loop."""

from collections.abc import Iterator
from contextlib import contextmanager

from jitney.engine.answer import Answer
from jitney.engine.handle import Handle

Handles = list[Handle[Answer]]


class LiveCalls:
    """The calls that are being answered, by caller and by the id of the reply."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], list[Handles]] = {}

    @contextmanager
    def known(self, caller: str, reply_id: str, handles: Handles) -> Iterator[None]:
        """While this is open, the call can be found; its caller may have chosen an id twice."""
        calls = self._calls.setdefault((caller, reply_id), [])
        calls.append(handles)
        try:
            yield
        finally:
            calls.remove(handles)
            if not calls:
                del self._calls[caller, reply_id]

    def find(self, caller: str, reply_id: str) -> Handles:
        """The requests of the caller's call with this id that have not ended."""
        calls = self._calls.get((caller, reply_id), ())
        return [handle for handles in calls for handle in handles if not handle.is_done]
