"""Invariant 2: a batch is within the token budget, the slots and the memory, each sequence once.

It scores no more prompt tokens than may be, but for two of each sequence. That the fake backend
refuses a batch by itself is reported under this name, too.
"""

from jitney.core import limits
from jitney.core.backend import Traits
from jitney.core.batch import Batch, Entry
from jitney.core.scheduler_settings import SchedulerSettings
from tests.simulation.alone import Oracle
from tests.simulation.seen import Executed, Name, Planned, Seen, Ticked, Violation

NAME = "capacity"


class CapacityChecker:
    """Measures every batch against the settings and the backend's traits."""

    def __init__(self, settings: SchedulerSettings, traits: Traits, oracle: Oracle) -> None:
        self._settings = settings
        self._oracle = oracle
        self._traits = traits

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Planned(batch=Batch() as batch):
                self._measure(batch)
                owners = seen.owners
                names = [owners.get(entry.slot) for entry in batch.entries]
                if None in names or len(set(names)) < len(names):
                    raise Violation(NAME, f"batch {batch.number} runs {names}")
                self._score([(each, owners[each.slot]) for each in batch.entries])
            case Executed():
                used = seen.backend.used_tokens
                if used > self._traits.kv_tokens:
                    raise Violation(NAME, f"{used} tokens of memory are in use")
            case Ticked():
                running = seen.snapshot.running_count
                if running > self._settings.max_num_seqs:
                    raise Violation(NAME, f"{running} sequences run")

    def _score(self, entries: list[tuple[Entry, Name]]) -> None:
        scored = []
        for entry, name in entries:
            request = self._oracle.request(name)
            is_wanted = request.params.prompt_logprobs is not None
            if is_wanted and entry.start < len(request.prompt):
                scored.append(entry.length)
        if sum(scored) > max(limits.SCORED_SPAN_MAX, 2 * len(scored)):
            raise Violation(NAME, f"{sum(scored)} tokens of prompts are scored in a batch")

    def _measure(self, batch: Batch) -> None:
        budget = self._settings.max_num_batched_tokens
        if batch.token_count > budget:
            raise Violation(
                NAME, f"batch {batch.number} has {batch.token_count} tokens, the budget is {budget}"
            )
        chunk = max(self._settings.prefill_chunk, 1)
        for entry in batch.entries:
            if entry.length > chunk:
                raise Violation(
                    NAME, f"slot {entry.slot} got {entry.length} tokens, a chunk is {chunk}"
                )
            if not 0 <= entry.slot < self._traits.slots_max:
                raise Violation(NAME, f"slot {entry.slot} does not exist")
        slots = {entry.slot for entry in batch.entries}
        if len(slots) < len(batch.entries):
            raise Violation(NAME, f"a slot stands twice in batch {batch.number}")
        if len(slots) > self._settings.max_num_seqs:
            raise Violation(NAME, f"{len(slots)} sequences stand in batch {batch.number}")
