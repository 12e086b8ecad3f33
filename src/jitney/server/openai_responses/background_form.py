"""What a background response makes, as it comes: `BackgroundForm`, a `ReplyForm`. One thread at a
time, the event loop but for `go_on`.

It collects what is new since it was asked; events are made later, from what is stored. One that
goes on from stored pieces has read their text before, in the same parts, so that it holds back and
gives out what the first one would have.

Tests: tests/e2e/openai_responses/test_background.py.
"""

from collections.abc import Sequence
from dataclasses import replace

from jitney.core.request import Request
from jitney.engine.answer import Answer, Delta, Usage
from jitney.server.openai.replies import Json, Reply
from jitney.server.openai_responses.item_events import kept_delta
from jitney.server.openai_responses.stored_rows import AnswerPiece

_SOMETHING = b"+"
"""Tells `Generation` that there was something: an error comes after it."""


class BackgroundForm:
    """The deltas, text and tokens of one answer, piece by piece."""

    def __init__(self, reply: Reply, response_id: str) -> None:
        self._choices = reply.choices
        self.id = response_id
        self.requests: tuple[Request, ...] = reply.requests
        self.streams = True
        self.finish_reason: str | None = None
        self._number = 0
        self._deltas: list[Json] = []
        self._texts: list[str] = []
        self._tokens: list[int] = []

    def go_on(self, pieces: Sequence[AnswerPiece]) -> None:
        """Go on from these, before anything else. A worker thread: it reads all their text."""
        tokens = tuple(token for piece in pieces for token in piece.tokens)
        if tokens:
            self.requests = tuple(replace(each, resumed=(tokens,)) for each in self.requests)
        for piece in pieces:
            self._choices.parts(0, Delta(0, piece.text or "", piece.tokens))
        self._number = len(pieces)

    @property
    def reasoning_count(self) -> int | None:
        """Tokens of reasoning so far; None if it is not known."""
        return self._choices.reasoning_count

    def events(self, place: int, delta: Delta, completion_count: int) -> bytes:
        """Take a delta."""
        for choice in self._choices.parts(place, delta):
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            if (stored := kept_delta(choice)) is not None:
                self._deltas.append(stored)
        self._texts.append(delta.text)
        self._tokens += delta.tokens
        return _SOMETHING

    def take(self) -> AnswerPiece | None:
        """What came since the last time; None if nothing did."""
        if not (self._deltas or self._tokens):
            return None
        self._number += 1
        piece = AnswerPiece(self._number, self._deltas, "".join(self._texts), tuple(self._tokens))
        self._deltas, self._texts, self._tokens = [], [], []
        return piece

    def whole(self, answers: list[Answer]) -> Json:
        """Nobody asks for it: a background response is read as it comes."""
        raise NotImplementedError

    def closing(self, usages: list[Usage]) -> bytes:
        """Nothing: the end is stored."""
        return b""

    def failed(self, body: Json) -> bytes:
        """Nothing: the end is stored."""
        return b""
