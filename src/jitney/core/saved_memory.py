"""Memory of waiting sequences outside the slots: saved when they were preempted, or fetched from
the disk. It is kept under tickets; no number is ever used again. Changed by `Memory` and
`StoredPrefixes` only.

Tests: tests/unit/core/test_scheduler.py and tests/simulation.
"""

from dataclasses import dataclass

from jitney.core.backend import Traits
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SavedMemory:
    """The memory of a waiting sequence: of `held` tokens, of which the first ones are of use."""

    ticket: int
    token_count: int
    held: int


class SavedMemories:
    """Which sequences have saved memory, within the limit of all of it."""

    def __init__(self, traits: Traits, settings: SchedulerSettings) -> None:
        self._limit = settings.saved_limit
        self._token_bytes = traits.kv_bytes_per_token
        self._state_bytes = traits.state_bytes
        self._of: dict[Sequence, SavedMemory] = {}
        self._held = 0
        self._ticket_next = 0

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._of

    def of(self, sequence: Sequence) -> SavedMemory | None:
        """The saved memory of the sequence, if there is any."""
        return self._of.get(sequence)

    def new_ticket(self) -> int:
        """A number that was never used."""
        self._ticket_next += 1
        return self._ticket_next - 1

    def has_room(self, token_count: int) -> bool:
        """Whether so many tokens more are within the limit."""
        saved_bytes = (self._held + token_count) * self._token_bytes
        return saved_bytes + (len(self._of) + 1) * self._state_bytes <= self._limit

    def can_hold(self, token_count: int) -> bool:
        """Whether so many tokens are within the limit when nothing else is kept."""
        return token_count * self._token_bytes <= self._limit

    def room(self, tokens_max: int) -> int:
        """How many tokens more are within the limit, up to so many."""
        left = self._limit // max(self._token_bytes, 1) - self._held
        return max(0, min(left, tokens_max))

    def add(self, sequence: Sequence, saved: SavedMemory) -> None:
        """Something is kept for the sequence."""
        assert sequence not in self._of, "a sequence has one memory"
        assert 0 < saved.token_count <= saved.held, saved
        self._of[sequence] = saved
        self._held += saved.held

    def pop(self, sequence: Sequence) -> SavedMemory | None:
        """Take the saved memory of the sequence, if there is any."""
        saved = self._of.pop(sequence, None)
        self._held -= 0 if saved is None else saved.held
        return saved

    def clear(self) -> None:
        """Every ticket is void."""
        self._of.clear()
        self._held = 0

    def check(self) -> None:
        """Recount (invariant 3)."""
        assert self._held == sum(each.held for each in self._of.values()), "saved"
