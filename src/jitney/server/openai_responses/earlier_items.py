"""The conversation before a response, from the rows of those before it: `EarlierItems`. One thread
at a time, neither the store's nor the event loop's: it may be long.

Tests: tests/e2e/openai_responses/test_stored.py and test_store_thread.py.
"""

from collections.abc import Sequence

from jitney.server.error_object import Refusal
from jitney.server.openai.replies import Json, dump_json
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.stored_rows import ENDED_WELL, ResponseRows, answered

_FIELD = "previous_response_id"


class EarlierItems:
    """The items of a response and of all before it: input and answer of each."""

    def __init__(self, response_id: str, bytes_max: int) -> None:
        self._bytes_left = bytes_max
        self._parts: list[list[Json]] = []
        self.next_id: str | None = response_id
        """The response to be read next; None if all were."""

    def read(self, links: Sequence[ResponseRows]) -> None:
        """Take the next ones, newest first. Raises Refusal and Damaged."""
        if not links:
            raise self._not_found()
        for each in links:
            self._take(each)

    def items(self) -> list[Json]:
        """All of them, in their order. Raises Refusal."""
        items = [item for part in reversed(self._parts) for item in part]
        if len(items) > limits.ITEMS_MAX:
            message = f"The conversation has more than {limits.ITEMS_MAX} items; begin a new one."
            raise Refusal("invalid_value", message, param=_FIELD)
        return items

    def _take(self, link: ResponseRows) -> None:
        _check_ended(link.row["status"])
        found = answered(link)
        part = [*found.input, *found.state.output]
        self._parts.append(part)
        self._bytes_left -= sum(len(dump_json(each)) for each in part)
        if self._bytes_left < 0 or len(self._parts) > limits.LINKS_MAX:
            message = "The conversation is too long; begin a new one."
            raise Refusal("invalid_value", message, param=_FIELD)
        self.next_id = link.row["previous_id"]

    def _not_found(self) -> Refusal:
        message = "There is no response with this id."
        if self._parts:
            message = "An earlier response of this conversation was deleted, or has expired."
        return Refusal("response_not_found", message, param=_FIELD)


def _check_ended(status: str) -> None:
    if status in ENDED_WELL:
        return
    message = f"The response is {status}; wait until it is completed."
    if status in ("cancelled", "failed"):
        message = f"The response is {status}, so nothing goes on behind it; go on from another one."
    raise Refusal("invalid_value", message, param=_FIELD)
