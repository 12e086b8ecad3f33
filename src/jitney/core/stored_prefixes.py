"""Prefixes on disk, as the scheduler sees them: who waits for one, and which prompts are stored.

The disk belongs to the backend, and only the backend knows what is on it. A waiting sequence with
much to compute asks for the longest stored prefix of its tokens, once while it waits, and is passed
over until the answer comes, for at most FETCH_S_MAX. One asks at a time, so that no more is in
memory than `saved_limit` allows; when its answer is late, the others neither wait nor ask. What was
found is restored like the memory of a preempted sequence. An answer that nobody waits for any more
is discarded. `Memory` owns this.

Tests: tests/unit/core/test_stored_prefixes.py and tests/simulation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

from jitney.core import limits
from jitney.core.backend import Fetch, Fetched, Traits
from jitney.core.batch import Discard, MemoryOperation, Store
from jitney.core.counters import Counters
from jitney.core.saved_memory import SavedMemories, SavedMemory
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence, SequenceState


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A fetch without an answer: for whom it is, and how long anybody waits for it."""

    ticket: int
    sequence: Sequence
    until: float


class StoredPrefixes:
    """Fetches of one scheduler."""

    def __init__(
        self,
        traits: Traits,
        settings: SchedulerSettings,
        counters: Counters,
        saved: SavedMemories,
        operations: list[MemoryOperation],
    ) -> None:
        """`operations` are those of the next batch."""
        self._is_used = traits.can_store and settings.enable_prefix_caching
        self._least = settings.stored_min
        self._length_max = settings.model_len_max
        self._counters = counters
        self._saved = saved
        self._operations = operations
        self._asks = set[Sequence]()
        """Who asked since it last ran."""
        self._until: dict[Sequence, float] = {}
        """When each that waits has waited for long enough, also for the answers of others."""
        self._outstanding: Outstanding | None = None
        self.ask: Callable[[Fetch], None] | None = None
        """Asks the disk, and does not wait. Without it nobody does."""

    def awaits(self, sequence: Sequence, length: int, now: float) -> bool:
        """Whether a waiting sequence is to be passed over; `length` tokens of it are in a slot."""
        usable = min(sequence.known_count - 1, sequence.prompt_count)
        if self.ask is None or usable - length < self._least or not self._may_ask(sequence):
            return False
        if now >= self._until.setdefault(sequence, now + limits.FETCH_S_MAX):
            return False
        asked = self._outstanding
        if asked is not None:
            # Its own, or that of another one: then its turn comes next.
            has_asked = sequence in self._asks and asked.sequence is not sequence
            return now < asked.until and not has_asked
        least, held_max = length + self._least, self._saved.room(self._length_max)
        if sequence in self._asks or held_max < least:
            return False
        self._asks.add(sequence)
        ticket = self._saved.new_ticket()
        self._outstanding = Outstanding(ticket, sequence, now + limits.FETCH_S_MAX)
        tokens = tuple(sequence.tokens[:usable])
        self._counters["fetches"] += 1
        scope = _scope_of(sequence)
        self.ask(Fetch(ticket, scope, tokens, least=least, held_max=held_max))
        return True

    def take(self, found: Fetched) -> None:
        """The answer to a fetch."""
        asked = self._outstanding
        sequence = None
        if asked is not None and asked.ticket == found.ticket:
            sequence, self._outstanding = asked.sequence, None
        if not found.length:
            self._counters["fetches_missed"] += 1
        elif sequence is not None and self._is_waiting(sequence):
            assert found.length < sequence.known_count, "one token is left to compute"
            self._saved.add(sequence, SavedMemory(found.ticket, found.length, found.held))
            self._counters["fetches_found"] += 1
            self._counters["fetched_tokens"] += found.length
        else:
            # It did not wait so long, or all memory was lost meanwhile.
            self._counters["fetched_in_vain"] += 1
            self._operations.append(Discard(found.ticket))

    def store(self, sequence: Sequence) -> None:
        """The prompt of the sequence is computed now: store it, if it was much work."""
        assert sequence.slot is not None, "only a sequence with a slot has a prompt in memory"
        computed_count = sequence.prompt_count - sequence.history.reused_count
        is_wanted = self._is_used and sequence.request.is_stored and not sequence.is_suspect
        # What could never be read back is not written.
        is_wanted = is_wanted and self._saved.can_hold(sequence.computed)
        if is_wanted and computed_count >= self._least:
            operation = Store(sequence.slot, _scope_of(sequence), sequence.prompt_count)
            self._operations.append(operation)
            self._counters["stores"] += 1

    def wake_at(self, now: float) -> float | None:
        """When somebody stops to wait though nothing has come."""
        asked = self._outstanding
        if asked is None or asked.until <= now:
            return None
        return min((until for until in self._until.values() if until > now), default=asked.until)

    def forget(self, sequence: Sequence) -> None:
        """It runs, or has ended: when it waits again, it may ask again."""
        self._asks.discard(sequence)
        self._until.pop(sequence, None)

    def clear(self) -> None:
        """The backend's memory is lost, and with it what was fetched."""
        self._asks.clear()
        self._until.clear()
        self._outstanding = None

    def _is_waiting(self, sequence: Sequence) -> bool:
        return sequence.state is SequenceState.WAITING and sequence not in self._saved

    def _may_ask(self, sequence: Sequence) -> bool:
        is_wanted = self._is_used and sequence.request.is_stored
        is_whole = sequence.wants_prompt_logprobs or sequence in self._saved
        return is_wanted and not is_whole and not sequence.is_suspect


def _scope_of(sequence: Sequence) -> str:
    assert sequence.chain is not None, "it was looked for in memory"
    return _digest_of(sequence.chain.scope)


@lru_cache(maxsize=1024)
def _digest_of(scope: str) -> str:
    # Of a scope only this is written: it has the name or the salt of a key.
    return blake2b(scope.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
