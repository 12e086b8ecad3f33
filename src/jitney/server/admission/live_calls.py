"""The calls that are being answered: found by their callers, with their waiting times.

Event loop; `take` is called on the engine thread for every record, and writes a few fields.

Tests: tests/e2e/server/test_steering.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jitney.core.request import RequestId
from jitney.engine.answer import Answer
from jitney.engine.handle import Handle
from jitney.records import (
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestStarted,
)

Handles = list[Handle[Answer]]


@dataclass(slots=True)
class Wait:
    """How one request of a live call waits: how many others waited when it was accepted, and the
    time until its first slot. Written on the engine thread."""

    request_id: RequestId
    is_accepted: bool = False
    queue_position: int | None = None
    waited_ms: float | None = None


class LiveCalls:
    """The calls that are being answered, by caller and by the id of the reply."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], list[Handles]] = {}
        self._waits: dict[RequestId, Wait] = {}
        self._waiting: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def registered(
        self, caller: str, reply_id: str, handles: Handles, waits: Sequence[Wait]
    ) -> Iterator[None]:
        """Within this context the call can be found. A caller may use one id twice."""
        calls = self._calls.setdefault((caller, reply_id), [])
        calls.append(handles)
        self._waits.update((each.request_id, each) for each in waits)
        try:
            yield
        finally:
            for each in waits:
                self._waits.pop(each.request_id, None)
            calls.remove(handles)
            if not calls:
                del self._calls[caller, reply_id]

    def find(self, caller: str, reply_id: str) -> Handles:
        """The requests of the caller's calls with this id that have not ended.

        The id is that of the reply, the caller's own `request_id`, or the id of one request in
        `/slots`.
        """
        for name in (reply_id, f"chatcmpl-{reply_id}", f"cmpl-{reply_id}"):
            if (caller, name) in self._calls:
                return [each for each in self._live(caller, name) if not each.is_done]
        names = [name for owner, name in self._calls if owner == caller]
        live = (each for name in names for each in self._live(caller, name))
        return [each for each in live if each.id == reply_id and not each.is_done]

    def take(self, record: Record) -> None:
        """Engine thread: note how requests wait."""
        match record:
            case RequestAccepted():
                wait = self._waits.get(record.request_id)
                if wait is not None:
                    wait.queue_position = len(self._waiting)
                    wait.is_accepted = True
                self._waiting.add(record.request_id)
            case RequestStarted():
                self._waiting.discard(record.request_id)
                wait = self._waits.get(record.request_id)
                if wait is not None:
                    wait.waited_ms = record.waited_ms
            case RequestDone() | RequestFailed():
                self._waiting.discard(record.request_id)
            case _:
                pass

    def _live(self, caller: str, reply_id: str) -> Handles:
        return [each for handles in self._calls[caller, reply_id] for each in handles]
