"""Runs a list of requests of any length through a bounded engine, in order of their results.

Called on the caller's thread by `jitney.llm`. Requests beyond what may wait are handed in as room
appears, so that a long list never meets QueueFull. If one fails, or the caller interrupts, the
rest is cancelled.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jitney.core.request import Request
from jitney.engine.answer import Answer
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle
from jitney.errors import QueueFull

RETRY_S_MAX = 1.0
"""The longest pause when others have filled the queue and nothing of ours is in it."""


@dataclass(slots=True)
class _Sent:
    """A request that was handed in, and its place among the results."""

    place: int
    request: Request
    handle: Handle[Answer]


def run_all(
    engine: Engine, requests: Iterator[Request], told: Callable[[Answer], None]
) -> list[Answer]:
    """The answers, in the order of the requests; `told` hears of each as it is known.

    Requests are made one by one as there is room for them, so that the first ones run while the
    last ones are still being tokenised.
    """
    line = _Line(engine, requests)
    answers: dict[int, Answer] = {}
    try:
        while line.fill():
            sent = line.sent.popleft()
            try:
                answer = sent.handle.result()
            except QueueFull as refusal:
                line.take_back(sent, refusal)
                continue
            line.is_held = False
            answers[sent.place] = answer
            told(answer)
    finally:
        for left in line.sent:
            left.handle.cancel()
    return [answers[place] for place in range(len(answers))]


class _Line:
    """Requests that are still to be handed in, and those that were."""

    def __init__(self, engine: Engine, requests: Iterator[Request]) -> None:
        self._engine = engine
        self._fresh = enumerate(requests)
        self._refused: deque[tuple[int, Request]] = deque()
        self._sent_max = engine.settings.queue_requests_max
        self.sent: deque[_Sent] = deque()
        self.is_held = False
        """Whether one was refused and nothing has ended since: the next would be refused too."""

    def fill(self) -> bool:
        """Hand in as many as have room; whether anything is to be waited for."""
        while len(self.sent) < self._sent_max and not (self.is_held and self.sent):
            following = self._refused.popleft() if self._refused else next(self._fresh, None)
            if following is None:
                break
            place, request = following
            try:
                handle = self._engine.send(request, streams=False)
            except QueueFull as refusal:
                self._refused.appendleft(following)
                self._hold(refusal)
                continue
            self.sent.append(_Sent(place, request, handle))
        return bool(self.sent)

    def take_back(self, sent: _Sent, refusal: QueueFull) -> None:
        """The request was refused after all: it goes to the front of those to be handed in."""
        self._refused.append((sent.place, sent.request))
        self._hold(refusal)

    def _hold(self, refusal: QueueFull) -> None:
        self.is_held = True
        if not self.sent:
            # Others fill the queue; there is nothing of ours to wait for but time.
            threading.Event().wait(min(refusal.retry_after_s, RETRY_S_MAX))
