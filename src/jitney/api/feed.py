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
    feed = _Feed(engine, requests, report)
    try:
        while feed.fill():
            feed.wait()
    finally:
        feed.cancel()
    return [feed.outcomes[place] for place in range(len(feed.outcomes))]


class _Feed:
    """The requests to send, and the handles of those that were sent, the oldest first.

    Each has its place among the results.

    `_room` bounds how many are in progress at a time. After a refusal it shrinks to the number
    that was accepted. It grows by one with every answer or pause.
    """

    def __init__(
        self,
        engine: Engine,
        requests: Iterator[Request | JitneyError],
        report: Callable[[int, AnswerOrError], None],
    ) -> None:
        self._engine = engine
        self._fresh = enumerate(requests)
        self._report = report
        self._refused: deque[tuple[int, Request]] = deque()
        self._sent: deque[tuple[int, Handle[Answer]]] = deque()
        self._room_max = engine.settings.max_num_queued_reqs + engine.settings.max_num_seqs
        self._room = self._room_max
        self.outcomes: dict[int, AnswerOrError] = {}

    def fill(self) -> bool:
        """Send as many as have room. True if there is an answer to wait for."""
        while len(self._sent) < self._room:
            following = self._refused.popleft() if self._refused else next(self._fresh, None)
            if following is None:
                if self._sent and self._engine.settings.wait_s is None:
                    self._engine.stop_gathering()
                break
            place, request = following
            if isinstance(request, JitneyError):
                self._finish(place, request)
                continue
            try:
                self._sent.append((place, self._engine.send(request, streams=False)))
            except QueueFull:
                self._refused.appendleft((place, request))
                self._narrow()
        return bool(self._sent)

    def wait(self) -> None:
        """Wait for the oldest request, or until there may be room for another one."""
        place, handle = self._sent[0]
        outcome: AnswerOrError
        try:
            outcome = handle.result(RETRY_S if self._refused else None)
        except QueueFull:
            self._sent.popleft()
            self._refused.append((place, handle.request))
            self._narrow()
            return
        except JitneyError as error:
            outcome = error  # its deadline too: a TimeoutError, but not of our pause
        except TimeoutError:
            self._widen()
            return
        self._sent.popleft()
        self._widen()
        self._finish(place, outcome)

    def cancel(self) -> None:
        """Cancel the requests that were sent and have not ended."""
        for _, handle in self._sent:
            handle.cancel()

    def _finish(self, place: int, outcome: AnswerOrError) -> None:
        self.outcomes[place] = outcome
        self._report(place, outcome)

    def _widen(self) -> None:
        """A request ended, or time has passed: there may be room for one more."""
        self._room = min(self._room + 1, self._room_max)

    def _narrow(self) -> None:
        self._room = max(len(self._sent), 1)
        if not self._sent:
            # Other callers fill the queue, and no request of ours will make room: wait a moment.
            threading.Event().wait(RETRY_S)
