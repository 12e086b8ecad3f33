"""The calls that are being answered: found by their callers, with what their requests reserved.

A request reserves tokens of its key, and gives back what it did not use when it has ended. Event
loop; `take` is called on the engine thread for every record.

Tests: tests/e2e/server/test_steering.py and test_rates.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jitney.core.request import Request, RequestId
from jitney.engine.answer import Answer
from jitney.engine.handle import Handle
from jitney.errors import InvalidRequest
from jitney.records import (
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestRefused,
    RequestStarted,
)
from jitney.server.admission.keys import Caller
from jitney.server.error_object import Refusal

Handles = list[Handle[Answer]]


@dataclass(slots=True)
class LiveRequest:
    """One request of a live call. The engine thread sets the fields that may be None."""

    caller: Caller
    prompt_count: int
    reserved_count: int
    """Tokens of the caller's key."""
    queue_position: int | None = None
    """How many others waited when it was accepted, without background ones."""
    waited_ms: float | None = None
    """The time until its first slot."""


class LiveCalls:
    """The calls that are being answered, by caller and by the id of the reply."""

    def __init__(self, model_len_max: int) -> None:
        self._model_len_max = model_len_max
        self._calls: dict[tuple[str, str], list[Handles]] = {}
        self._requests: dict[RequestId, LiveRequest] = {}
        self._waiting: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def registered(self, caller: str, reply_id: str, handles: Handles) -> Iterator[None]:
        """Within this context the call can be found. A caller may use one id twice."""
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

        The id is that of the reply, the caller's own `request_id`, or the id of one request in
        `/slots`.
        """
        for name in (reply_id, f"chatcmpl-{reply_id}", f"cmpl-{reply_id}"):
            if (caller, name) in self._calls:
                return [each for each in self._live(caller, name) if not each.is_done]
        names = [name for owner, name in self._calls if owner == caller]
        live = (each for name in names for each in self._live(caller, name))
        return [each for each in live if each.id == reply_id and not each.is_done]

    def reserve(self, requests: Sequence[Request], caller: Caller) -> list[LiveRequest]:
        """Count the completions of one call, and reserve its tokens until they have ended.

        All of them or none. Raises Refusal and InvalidRequest.
        """
        count = sum(each.params.n for each in requests)
        caller.count_completions(count)
        made = {
            each.id: LiveRequest(caller, len(each.prompt), self._tokens_max(each))
            for each in requests
        }
        try:
            caller.reserve_tokens(sum(each.reserved_count for each in made.values()))
        except (Refusal, InvalidRequest):
            caller.uncount_completions(count)
            raise
        self._requests.update(made)
        return list(made.values())

    def release(self, request_id: RequestId, generated_count: int = 0) -> None:
        """The request has ended: give back unused tokens. A request that never ran used none."""
        self._waiting.discard(request_id)
        request = self._requests.pop(request_id, None)
        if request is not None:
            has_run = request.waited_ms is not None
            used_count = request.prompt_count + generated_count if has_run else 0
            request.caller.give_back_tokens(max(request.reserved_count - used_count, 0))

    def take(self, record: Record) -> None:
        """Engine thread: note how requests wait, and release one before its caller knows of its
        end."""
        match record:
            case RequestAccepted():
                if (request := self._requests.get(record.request_id)) is not None:
                    request.queue_position = len(self._waiting)
                if not record.is_background:
                    self._waiting.add(record.request_id)
            case RequestStarted():
                if (request := self._requests.get(record.request_id)) is not None:
                    request.waited_ms = record.waited_ms
                self._waiting.discard(record.request_id)
            case RequestDone() | RequestFailed():
                self.release(record.request_id, record.generated_tokens)
            case RequestRefused():
                self.release(record.request_id)
            case _:
                pass

    def _live(self, caller: str, reply_id: str) -> Handles:
        return [each for handles in self._calls[caller, reply_id] for each in handles]

    def _tokens_max(self, request: Request) -> int:
        """The most tokens that a request may use: its prompt and its longest completions."""
        params, prompt_count = request.params, len(request.prompt)
        room = self._model_len_max - prompt_count
        made_max = room if params.max_tokens is None else min(params.max_tokens, room)
        return prompt_count + params.n * made_max
