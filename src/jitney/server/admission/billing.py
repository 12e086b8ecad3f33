"""Reserves tokens of a key for its requests until they have ended: `Billing`.

`reserve` and `release` are called on the event loop, `take` on the engine thread for every record.

Tests: tests/e2e/server/test_rates.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jitney.core.request import Request, RequestId
from jitney.errors import InvalidRequest
from jitney.records import (
    Record,
    RequestDone,
    RequestFailed,
    RequestRefused,
    RequestStarted,
)
from jitney.server.admission.keys import Caller
from jitney.server.error_object import Refusal


@dataclass(slots=True)
class _Bill:
    caller: Caller
    prompt_count: int
    reserved_count: int
    is_started: bool = False


class Billing:
    """The requests that have reserved tokens."""

    def __init__(self, model_len_max: int) -> None:
        self._model_len_max = model_len_max
        self._bills: dict[RequestId, _Bill] = {}

    def reserve(self, requests: Sequence[Request], caller: Caller) -> None:
        """Count the completions of one call, and reserve its tokens until they have ended.

        All of them or none. Raises Refusal and InvalidRequest.
        """
        count = sum(each.params.n for each in requests)
        caller.count_completions(count)
        if caller.tokens is None:
            return
        bills = {
            each.id: _Bill(caller, len(each.prompt), self._tokens_max(each)) for each in requests
        }
        try:
            caller.reserve_tokens(sum(bill.reserved_count for bill in bills.values()))
        except (Refusal, InvalidRequest):
            caller.uncount_completions(count)
            raise
        self._bills.update(bills)

    def release(self, request_id: RequestId, generated_count: int = 0) -> None:
        """The request has ended: give back unused tokens. A request that never ran used none."""
        bill = self._bills.pop(request_id, None)
        if bill is not None:
            used_count = bill.prompt_count + generated_count if bill.is_started else 0
            bill.caller.give_back_tokens(max(bill.reserved_count - used_count, 0))

    def take(self, record: Record) -> None:
        """Engine thread: release a request that ended, before its caller knows of the end."""
        match record:
            case RequestStarted():
                bill = self._bills.get(record.request_id)
                if bill is not None:
                    bill.is_started = True
            case RequestDone() | RequestFailed():
                self.release(record.request_id, record.generated_tokens)
            case RequestRefused():
                self.release(record.request_id)
            case _:
                pass

    def _tokens_max(self, request: Request) -> int:
        """The most tokens that a request may use: its prompt and its longest completions."""
        params, prompt_count = request.params, len(request.prompt)
        room = self._model_len_max - prompt_count
        made_max = room if params.max_tokens is None else min(params.max_tokens, room)
        return prompt_count + params.n * made_max
