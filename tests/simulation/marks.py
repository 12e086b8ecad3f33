"""Marks: places that a sweep of seeds must have visited, next to the core's own counters.

A mark that stays at zero over the sweep means that the simulation proves less than it claims.
"""

from collections import Counter

from jitney.core import counters
from jitney.core.batch import Batch, Copy, Discard, Open, Restore, Save, Truncate
from jitney.core.events import FinishEvent, FinishReason, PreemptEvent, PreemptReason
from jitney.core.limits import STOP_STRINGS_MAX
from jitney.core.request import RequestId
from jitney.core.scheduler_settings import GroupAnswers, Mix, Policy, Strategy
from jitney.engine.answer import Delta, Ending
from jitney.errors import QueueFull
from tests.simulation.alone import cut
from tests.simulation.policies import KINDS
from tests.simulation.seen import (
    Executed,
    Fetched,
    Happened,
    Injected,
    Planned,
    Seen,
    Stopped,
    Submitted,
    TokenEvent,
)

NAMES = (
    *(f"strategy {each}" for each in Strategy),
    *(f"policy {each}" for each in Policy),
    *(f"mix {each}" for each in Mix),
    *(f"hostile policy {each}" for each in KINDS),
    *(f"answers {each}" for each in GroupAnswers),
    "no displacement",
    *(f"block {each}" for each in (1, 4, 16, 32)),
    "background beside live",
    "background displaced",
    "background refused",
    "backend in process",
    "backend queues",
    "planned ahead in haste",
    "two batches in flight",
    "two batches lost at once",
    "reuse off",
    "fault crash",
    "fault entry",
    "fault fail",
    "fault poison",
    "fault count",
    "fault stall",
    "lost while idle",
    "backend restarted",
    "backend restart failed",
    "backend given up",
    "cancel between plan and apply",
    "cancel twice",
    "cancel unknown",
    "character across tokens",
    "clock jumped",
    "completions of one request",
    "constraint",
    "copy found that was waited for",
    "deltas merged",
    "drained",
    "entry continues",
    "many stop strings",
    "memory copied",
    "memory discarded",
    "memory restored",
    "memory saved",
    "memory truncated",
    "penalty",
    "prompt logprobs",
    "refused at the door",
    "refused while draining",
    "stop string across tokens",
    "stop string found",
    "stop token",
)

_OPERATIONS = {
    Copy: "memory copied",
    Discard: "memory discarded",
    Restore: "memory restored",
    Save: "memory saved",
    Truncate: "memory truncated",
}


class Marks:
    """Counts marks, by what it sees and by what it is told."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._background: set[RequestId] = set()
        self._kept: set[int] = set()
        """Slots that were filled in the last batch with copies for which nobody had a use yet."""

    def add(self, name: str) -> None:
        """This place was visited."""
        assert name in NAMES, name
        self.counts[name] += 1

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Planned(batch=Batch() as batch):
                if seen.in_haste:
                    self.add("planned ahead in haste")
                members = {seen.owners[entry.slot][0] for entry in batch.entries}
                if members & self._background and members - self._background:
                    self.add("background beside live")
            case Executed():
                self._see_batch(seen)
            case Submitted():
                self._see_submitted(seen)
            case Injected():
                self.add(f"fault {seen.kind}")
            case Happened():
                self._see_events(seen)
            case Fetched():
                self._see_mail(seen)
            case Stopped():
                self.add("backend given up")

    def _see_batch(self, seen: Executed) -> None:
        operations = seen.batch.operations
        copies = [each for each in operations if isinstance(each, Copy)]
        opened = {each.slot for each in operations if isinstance(each, Open)}
        # Whoever comes by chance is seldom here in the very next batch.
        if any(each.source in self._kept and each.target in opened for each in copies):
            self.add("copy found that was waited for")
        self._kept = {each.target for each in copies if each.target not in opened}
        for operation in operations:
            if type(operation) in _OPERATIONS:
                self.add(_OPERATIONS[type(operation)])
        if any(entry.continues for entry in seen.batch.entries):
            self.add("entry continues")

    def _see_submitted(self, seen: Submitted) -> None:
        params = seen.request.params
        if seen.error is not None:
            if not isinstance(seen.error, QueueFull):
                self.add("refused at the door")
            elif seen.request.is_background:
                self.add("background refused")
            return
        if seen.request.is_background:
            self._background.add(seen.request.id)
        if params.n > 1:
            self.add("completions of one request")
        if len(params.stop_strings) == STOP_STRINGS_MAX:
            self.add("many stop strings")
        if params.structured_outputs is not None:
            self.add("constraint")
        if params.frequency_penalty or params.repetition_penalty != 1.0:
            self.add("penalty")
        if params.prompt_logprobs is not None:
            self.add("prompt logprobs")

    def _see_events(self, seen: Happened) -> None:
        for event in seen.events:
            if isinstance(event, FinishEvent) and event.stop_reason is not None:
                self.add("stop token")
            if isinstance(event, TokenEvent) and 0xC2 <= event.token < 0x100:
                self.add("character across tokens")
            is_displaced = isinstance(event, PreemptEvent) and (
                event.reason is PreemptReason.DISPLACED
            )
            if is_displaced and event.request_id in self._background:
                self.add("background displaced")

    def _see_mail(self, seen: Fetched) -> None:
        item = seen.item
        if isinstance(item, Delta):
            # Without stop strings only half a character holds tokens back, and that is three.
            if len(item.tokens) > 4 and not seen.request.params.stop_strings:
                self.add("deltas merged")
            return
        assert isinstance(item, Ending), item
        for completion in item.answer.completions if item.answer is not None else ():
            if completion.finish_reason is FinishReason.STOP and isinstance(
                completion.stop_reason, str
            ):
                self.add("stop string found")
                found = cut(completion.tokens, seen.request.params)
                if found.starts_in + 1 < found.token_count:
                    self.add("stop string across tokens")


def unreached(counts: Counter[str], marks: Counter[str]) -> list[str]:
    """Counters of the core and marks that stayed at zero."""
    return [name for name in counters.NAMES if not counts[name]] + [
        name for name in NAMES if not marks[name]
    ]
