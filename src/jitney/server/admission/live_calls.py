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
        """The requests of the caller's calls with this id that have not ended.

        It is the id of the reply, what the caller chose as `request_id`, or the id of one request
        as `/slots` tells it.
        """
        for name in (reply_id, f"chatcmpl-{reply_id}", f"cmpl-{reply_id}"):
            if (caller, name) in self._calls:
                return [each for each in self._live(caller, name) if not each.is_done]
        names = [name for owner, name in self._calls if owner == caller]
        live = (each for name in names for each in self._live(caller, name))
        return [each for each in live if each.id == reply_id and not each.is_done]

    def _live(self, caller: str, reply_id: str) -> Handles:
        return [each for handles in self._calls[caller, reply_id] for each in handles]
