"""Runs a list of requests of any length through an engine with a bounded queue.

Called on the caller's thread by `jitney.api.llm`, `jitney.cli.run` and `jitney_cluster.ray_data`.
When the queue is full, the other requests are sent as room appears, so a long list never gets
QueueFull. If the caller interrupts, the rest is cancelled.

Tests: tests/unit/api/test_llm.py.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator

from jitney.core.request import Request
from jitney.engine.answer import Answer
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle
from jitney.errors import JitneyError, QueueFull

AnswerOrError = Answer | JitneyError
"""What came of a request."""

RETRY_S = 0.05
"""The pause before a refused request is sent again, unless an answer comes first."""


def run_all(
    engine: Engine, requests: Iterator[Request], report: Callable[[Answer], None]
) -> list[Answer]:
    """The answers, in the order of the requests; `report` gets each answer when it is known.

    If one fails, its error is raised and the rest is cancelled.
    """

    def report_or_raise(_place: int, outcome: AnswerOrError) -> None:
        if isinstance(outcome, JitneyError):
            raise outcome
        report(outcome)

    outcomes = run_each(engine, requests, report_or_raise)
    return [each for each in outcomes if isinstance(each, Answer)]


def run_each(
    engine: Engine,
    requests: Iterator[Request | JitneyError],
    report: Callable[[int, AnswerOrError], None],
) -> list[AnswerOrError]:
    """What came of each request, in their order: its answer, or the error that it failed with.

    An error in place of a request is its outcome. `report` gets each one with its place when it is
    known; where it raises, the rest is cancelled.

    Requests are made one by one, when there is room. So the first ones run while the last ones
    are not yet tokenised.
    """
    outcomes: dict[int, AnswerOrError] = {}

    def report_one(place: int, outcome: AnswerOrError) -> None:
        outcomes[place] = outcome
        report(place, outcome)

    def sendable() -> Iterator[tuple[int, Request]]:
        for place, each in enumerate(requests):
            if isinstance(each, JitneyError):
                report_one(place, each)
            else:
                yield place, each

    feed = _Feed(engine, sendable())
    try:
        while feed.fill():
            if feed.is_all_sent and engine.settings.wait_s is None:
                engine.stop_gathering()
            ended = feed.wait()
            if ended is not None:
                report_one(*ended)
    finally:
        for _, handle in feed.sent:
            handle.cancel()
    return [outcomes[place] for place in range(len(outcomes))]


class _Feed:
    """The requests to send, and the handles of those that were sent, the oldest first.

    Each has its place among the results.

    `_room` bounds how many are in progress at a time. After a refusal it shrinks to the number
    that was accepted. It grows by one with every answer or pause.
    """

    def __init__(self, engine: Engine, requests: Iterator[tuple[int, Request]]) -> None:
        self._engine = engine
        self._fresh = requests
        self._refused: deque[tuple[int, Request]] = deque()
        self._room_max = engine.settings.max_num_queued_reqs + engine.settings.max_num_seqs
        self._room = self._room_max
        self._is_exhausted = False
        self.sent: deque[tuple[int, Handle[Answer]]] = deque()

    @property
    def is_all_sent(self) -> bool:
        """Whether nothing is left to send."""
        return self._is_exhausted and not self._refused

    def fill(self) -> bool:
        """Send as many as have room. True if there is an answer to wait for."""
        while len(self.sent) < self._room:
            following = self._refused.popleft() if self._refused else next(self._fresh, None)
            if following is None:
                self._is_exhausted = True
                break
            place, request = following
            try:
                handle = self._engine.send(request, streams=False)
            except QueueFull:
                self._refused.appendleft(following)
                self._narrow()
            else:
                self.sent.append((place, handle))
        return bool(self.sent)

    def wait(self) -> tuple[int, AnswerOrError] | None:
        """Wait for the oldest request; None if there may be room for another one before its end."""
        place, handle = self.sent[0]
        outcome: AnswerOrError
        try:
            outcome = handle.result(RETRY_S if self._refused else None)
        except QueueFull:
            self.sent.popleft()
            self._refused.append((place, handle.request))
            self._narrow()
            return None
        except JitneyError as error:
            outcome = error  # its deadline too: a TimeoutError, but not of our pause
        except TimeoutError:
            self._widen()
            return None
        self.sent.popleft()
        self._widen()
        return place, outcome

    def _widen(self) -> None:
        """A request ended, or time has passed: there may be room for one more."""
        self._room = min(self._room + 1, self._room_max)

    def _narrow(self) -> None:
        self._room = max(len(self.sent), 1)
        if not self.sent:
            # Other callers fill the queue, and no request of ours will make room: wait a moment.
            threading.Event().wait(RETRY_S)
