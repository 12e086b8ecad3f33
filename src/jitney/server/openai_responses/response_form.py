"""How the answer to a response's chat is written: `ResponseForm`, a `ReplyForm`. One thread.

Whole and streamed come from the same deltas: a whole answer is one delta of the engine.

Tests: tests/e2e/openai_responses/test_protocol.py.
"""

from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Delta, Usage
from jitney.server.openai.replies import Json, Reply
from jitney.server.openai_responses.item_events import ItemWriter, kept_delta, state_of
from jitney.server.openai_responses.item_list import output_of
from jitney.server.openai_responses.response_object import (
    ResponseState,
    error_object,
    usage_object,
)
from jitney.server.service import now_s

PREFIX = "resp_"

_VALUE_BYTES = 50
"""Of a token or a logprob, as JSON."""


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

    @property
    def answer_bytes(self) -> int:
        """What the deltas take in the store, about."""
        logprobs = self.requests[0].params.logprobs
        values = 1 if logprobs is None else logprobs + 2
        return len(self.deltas) * values * _VALUE_BYTES

    def whole(self, answers: list[Answer]) -> Json:
        """The response object."""
        (answer,) = answers
        (completion,) = answer.completions
        self._take(_delta_of(completion))
        self.deltas = [part for each in self.deltas for part in _by_token(each)]
        self.settle([answer.usage])
        self.state.output = output_of(self.id, self.deltas, self.state.status)
        return self.state.object()

    def opening(self) -> bytes:
        """The first events; nothing if they were given."""
        if self._has_begun:
            return b""
        self._has_begun = True
        kinds = ("response.created", "response.in_progress")
        return b"".join(self._writer.tell(self.state.object(), *kinds))

    def events(self, place: int, delta: Delta, completion_count: int) -> bytes:
        """What a delta adds to the stream."""
        begun = self.opening()
        return begun + b"".join(map(self._writer.push, self._take(delta)))

    def closing(self, usages: list[Usage]) -> bytes:
        """The end of the items, and the last event."""
        begun = self.opening()
        self.settle(usages)
        return begun + self._end(self.state.status)

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
        return begun + self._end("incomplete")

    def _take(self, delta: Delta) -> list[Json]:
        """The deltas of the chat that a delta of the engine makes."""
        found = []
        for choice in self._reply.choices.parts(0, delta):
            self._finish_reason = choice["finish_reason"] or self._finish_reason
            if (stored := kept_delta(choice)) is not None:
                found.append(stored)
        if self.state.is_stored or not self.streams:
            self.deltas += found
        return found

    def _end(self, status: str) -> bytes:
        parts = self._writer.close(status) + self._writer.end(self.state.object())
        # A connection that is kept open may hold this until its next request.
        self.deltas, self._writer = [], ItemWriter(self.id)
        return b"".join(parts)


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


def _by_token(stored: Json) -> list[Json]:
    """The same text in as many deltas as it has logprobs, so that no piece of it is too long to be
    read in one go. Where a token ends in it is not known: all have the same length."""
    delta, logprobs = stored["delta"], stored.get("logprobs")
    if not logprobs:
        return [stored]
    if "content" not in delta:
        # There is no message for them.
        return [{"delta": delta}] if delta else []
    text, count = delta["content"], len(logprobs)
    ends = [-(-len(text) * number // count) for number in range(count + 1)]
    found: list[Json] = [
        {"delta": {"content": text[begin:end]} if end > begin else {}, "logprobs": [each]}
        for begin, end, each in zip(ends, ends[1:], logprobs, strict=False)
    ]
    found[-1]["delta"] |= {name: each for name, each in delta.items() if name != "content"}
    return found
