"""How the answer to a response's chat is written: `ResponseForm`, a `ReplyForm`. One thread.

Whole and streamed come from the same deltas: a whole answer is one delta of the engine.

Tests: tests/e2e/openai_responses/test_protocol.py.
"""

from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Delta, Usage
from jitney.server.openai.replies import Json, Reply
from jitney.server.openai_responses.item_events import (
    DONE,
    ItemWriter,
    kept_delta,
    push,
    state_of,
)
from jitney.server.openai_responses.response_object import (
    ResponseState,
    error_object,
    usage_object,
)
from jitney.server.service import now_s

PREFIX = "resp_"


def response_id_of(reply: Reply) -> str:
    """The id of the response that this reply becomes."""
    return PREFIX + reply.id.rpartition("-")[2]


class ResponseForm:
    """The reply to one response that has a caller."""

    def __init__(self, reply: Reply, state: ResponseState) -> None:
        assert len(reply.requests) == 1, "A response has one prompt"
        self._reply = reply
        self.state = state
        self._writer = ItemWriter(state.id)
        self.deltas: list[Json] = []
        """What the answer is made of, to be stored."""
        self._finish_reason: str | None = None
        self._has_begun = False

    @property
    def id(self) -> str:
        """The id of the response."""
        return self.state.id

    @property
    def requests(self) -> tuple[Request, ...]:
        """One."""
        return self._reply.requests

    @property
    def streams(self) -> bool:
        """Whether the caller reads events."""
        return self._reply.streams

    @property
    def seed(self) -> int:
        """What the tokens are drawn by."""
        return self.requests[0].seed

    def whole(self, answers: list[Answer]) -> Json:
        """The response object."""
        (answer,) = answers
        (completion,) = answer.completions
        for stored in self._take(_delta_of(completion)):
            push(self._writer, stored)
        self.settle([answer.usage])
        self._close()
        return self.state.object()

    def opening(self) -> bytes:
        """The first events; nothing if they were given."""
        if self._has_begun:
            return b""
        self._has_begun = True
        told = self.state.object()
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._writer.tell(each, told) for each in kinds)

    def events(self, place: int, delta: Delta, completion_count: int) -> bytes:
        """What a delta adds to the stream."""
        begun = self.opening()
        return begun + b"".join(push(self._writer, each) for each in self._take(delta))

    def closing(self, usages: list[Usage]) -> bytes:
        """The end of the items, and the last event."""
        begun = self.opening()
        self.settle(usages)
        return begun + self._close() + self._writer.end(self.state.object()) + DONE

    def settle(self, usages: list[Usage]) -> None:
        """All deltas are there: how the response ends. Once or twice, with the same values."""
        state = self.state
        state.status = state_of(self._finish_reason)
        state.usage = usage_object(usages, self._reply.choices.reasoning_count)
        state.completed_at = state.completed_at or now_s()

    def failed(self, body: Json) -> bytes:
        """The last event of a stream that failed."""
        begun = self.opening()
        self.state.status, self.state.error = "failed", error_object(body)
        self.state.is_stored = False
        closed = self._writer.close("incomplete")
        self.state.output = self._writer.items
        return begun + closed + self._writer.end(self.state.object()) + DONE

    def _take(self, delta: Delta) -> list[Json]:
        """The deltas of the chat that a delta of the engine makes."""
        found = []
        for choice in self._reply.choices.parts(0, delta):
            self._finish_reason = choice["finish_reason"] or self._finish_reason
            if (stored := kept_delta(choice)) is not None:
                found.append(stored)
        self.deltas += found
        return found

    def _close(self) -> bytes:
        closed = self._writer.close(self.state.status)
        self.state.output = self._writer.items
        return closed


def _delta_of(completion: Completion) -> Delta:
    """A whole completion as one delta."""
    return Delta(
        completion.index,
        completion.text,
        completion.tokens,
        completion.logprobs or (),
        completion.finish_reason,
        completion.stop_reason,
    )
