"""Invariant 7: `usage` is what was counted, counters only grow, and the sums are right."""

from collections import Counter
from collections.abc import Mapping

from jitney.core.batch import Batch
from jitney.core.events import FinishEvent, FinishReason, PreemptEvent, PreemptReason
from jitney.engine.answer import Answer, Ending
from tests.simulation.pauses import Pauses
from tests.simulation.seen import (
    Fetched,
    Happened,
    Name,
    Planned,
    Seen,
    Submitted,
    Ticked,
    TokenEvent,
    Violation,
)

NAME = "usage"
_COUNTER = {
    FinishReason.STOP: "ended_finished",
    FinishReason.LENGTH: "ended_finished",
    FinishReason.CANCELLED: "ended_cancelled",
    FinishReason.DEADLINE: "ended_failed",
    FinishReason.FAILED: "ended_failed",
}


class UsageChecker:
    """Counts for itself and compares."""

    def __init__(self, pauses: Pauses) -> None:
        self._pauses = pauses
        self._own: Counter[str] = Counter()
        self._last: Mapping[str, int] = {}
        self._prompts: dict[str, int] = {}
        self._tokens: Counter[Name] = Counter()
        self._preempted: Counter[Name] = Counter()
        self._first_start: dict[Name, int] = {}
        self._ends: dict[Name, FinishEvent] = {}
        self._lost_memory = False

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                self._own["accepted"] += seen.request.params.n
                self._prompts[seen.request.id] = len(seen.request.prompt)
            case Planned(batch=Batch() as batch):
                owners = seen.owners
                for entry in batch.entries:
                    self._first_start.setdefault(owners[entry.slot], entry.start)
            case Happened():
                self._lost_memory |= seen.method == "fail"
                self._take(seen)
            case Fetched(item=Ending(answer=Answer() as answer)):
                self._compare(answer)
            case Ticked():
                self._counters(seen.snapshot.counters, seen.snapshot.unfinished_count)

    def _take(self, seen: Happened) -> None:
        for event in seen.events:
            name = (event.request_id, event.index)
            if isinstance(event, TokenEvent):
                self._tokens[name] += 1
            elif isinstance(event, PreemptEvent):
                self._preempted[name] += event.reason is not PreemptReason.PAUSED
            elif isinstance(event, FinishEvent):
                self._finish(name, event, seen.method)

    def _finish(self, name: Name, event: FinishEvent, method: str) -> None:
        self._ends[name] = event
        self._own[_COUNTER[event.reason]] += 1
        ended_by_token = event.reason is FinishReason.STOP and method == "apply"
        count = self._tokens[name] + ended_by_token
        if event.completion_count != count:
            raise Violation(NAME, f"{name} counts {event.completion_count} tokens, made {count}")
        # A preemption that was planned with the batch under way is told after an early end.
        missing = event.preempted_count - self._preempted[name]
        if missing < 0 or (missing and method == "apply"):
            raise Violation(NAME, f"{name} counts {event.preempted_count} preemptions")
        start = self._first_start.get(name)
        was_stopped = event.preempted_count or self._pauses.was_ever_paused(name)
        is_plain = not was_stopped and not self._lost_memory
        if is_plain and start is not None and event.cached_count != start:
            raise Violation(NAME, f"{name} counts {event.cached_count} cached tokens, had {start}")

    def _compare(self, answer: Answer) -> None:
        request_id = answer.request.id
        for completion in answer.completions:
            end = self._ends[request_id, completion.index]
            usage = completion.usage
            counted = (self._prompts[request_id], end.completion_count, end.cached_count)
            if (usage.prompt_count, usage.completion_count, usage.cached_count) != counted:
                raise Violation(NAME, f"{request_id} is told {usage}, counted was {counted}")
        total = sum(completion.usage.completion_count for completion in answer.completions)
        if answer.usage.completion_count != total:
            raise Violation(NAME, f"{request_id} is told {answer.usage}, the sum is {total}")

    def _counters(self, counters: Mapping[str, int], live_count: int) -> None:
        for name, count in self._last.items():
            if counters[name] < count:
                raise Violation(NAME, f"the counter {name} fell from {count} to {counters[name]}")
        self._last = counters
        for name in ("accepted", *sorted(set(_COUNTER.values()))):
            if counters[name] != self._own[name]:
                raise Violation(NAME, f"{name} is {counters[name]}, seen were {self._own[name]}")
        ended = sum(self._own[name] for name in set(_COUNTER.values()))
        if self._own["accepted"] != ended + live_count:
            raise Violation(NAME, f"{self._own} and {live_count} live do not add up")
