"""Checks the entries of a batch and numbers their rows of logits, before the forward pass.

Called by backends on the thread that runs batches. Raises BackendFailed for an entry that does not
fit its slot.
"""

from dataclasses import dataclass
from typing import Any  # Any: what does not matter here

from jitney.backends.shared.slots import EntryRows, SlotContents, SlotMemory
from jitney.core.batch import Batch, Decodes, Entry
from jitney.errors import BackendFailed


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Lays out the batches of one backend, within its limits."""

    memory: SlotMemory[Any]
    max_num_batched_tokens: int
    slot_tokens_max: int
    vocabulary_count: int

    def lay_out(self, batch: Batch, *, by_slot: bool) -> list[EntryRows]:
        """The entries, checked against what their slots hold; in the order of slots if `by_slot`.

        Rows of the logits are numbered in the order of the answer.
        """
        self.check_batch(batch)
        order = list(enumerate(batch.entries))
        if by_slot:
            order.sort(key=lambda each: each[1].slot)
        laid_out: list[EntryRows] = []
        for index, entry in order:
            first = laid_out[-1].rows.stop if laid_out else 0
            contents = self.memory.contents(entry.slot)
            laid_out.append(self.lay_out_entry(index, entry, contents, first))
        return laid_out

    def check_batch(self, batch: Batch) -> int:
        """The tokens of the batch. Raises BackendFailed if it is too large or has a slot twice."""
        token_count, tokens_max = batch.token_count, self.max_num_batched_tokens
        if token_count > tokens_max:
            raise BackendFailed(
                f"Batch {batch.number} has {token_count} tokens; the limit is {tokens_max}."
            )
        if len({*batch.decodes.slots, *[each.slot for each in batch.spans]}) < batch.entry_count:
            raise BackendFailed(f"A slot stands twice in batch {batch.number}.")
        return token_count

    def lay_out_entry(
        self, index: int, entry: Entry, contents: SlotContents, row_first: int
    ) -> EntryRows:
        """One entry, checked against what its slot holds; its first row has this number."""
        tokens = self.checked_tokens(entry, contents)
        scored = self._scored_positions(entry, contents)
        # The last row is wanted for its token, or for the first token of the next entry.
        rows = entry.length if scored else int(entry.wants_token)
        return EntryRows(index, entry, contents, tokens, range(row_first, row_first + rows), scored)

    def checked_tokens(self, entry: Entry, contents: SlotContents) -> tuple[int, ...]:
        """The tokens of an entry. Raises BackendFailed where the entry does not fit its slot."""
        start, tokens = entry.start, entry.tokens
        if start != len(contents.tokens):
            raise BackendFailed(
                f"The span of slot {entry.slot} starts at {start}, "
                f"and the slot holds {contents.length} tokens."
            )
        if entry.wants_token and contents.sampling is None:
            raise BackendFailed(f"A token is wanted of slot {entry.slot}, which was never opened.")
        end = start + (len(tokens) or 1)
        if end > self.slot_tokens_max:
            raise BackendFailed(
                f"Slot {entry.slot} has no room for {end} tokens; "
                f"it holds at most {self.slot_tokens_max}."
            )
        if entry.continues:
            last = contents.token_last
            if tokens or last is None:
                raise BackendFailed(
                    f"Slot {entry.slot} must continue from its last token, and "
                    f"{'has tokens given as well' if tokens else 'has sampled none'}."
                )
            return (last,)
        if not tokens:
            raise BackendFailed(f"The span of slot {entry.slot} is empty.")
        # A decode has one token, and there are many decodes.
        lowest, highest = (tokens[0], tokens[0]) if len(tokens) == 1 else (min(tokens), max(tokens))
        if lowest < 0 or highest >= self.vocabulary_count:
            raise BackendFailed(f"Slot {entry.slot} got a token that is not in the vocabulary.")
        return tokens

    def checked_decode(self, slot: int, start: int, token: int, contents: SlotContents) -> int:
        """The token of a decode, checked as `checked_tokens` does."""
        # Of a batch that was sent ahead, no token is given.
        found = contents.token_last if token < 0 else token
        if (
            found is not None
            and 0 <= found < self.vocabulary_count
            and start == len(contents.tokens) < self.slot_tokens_max
            and contents.sampling is not None
        ):
            return found
        (entry,) = Decodes((slot,), (start,), (token,)).entries()
        return self.checked_tokens(entry, contents)[0]

    def _scored_positions(self, entry: Entry, contents: SlotContents) -> range:
        """The positions of the entry whose prompt logprobs are wanted and available.

        The entry before it computed the row that predicts its first token. If that was in another
        slot, the row is lost, and the whole entry is left out. The scheduler allows this only for
        prompts whose logprobs were already reported.
        """
        sampling = contents.sampling
        if sampling is None or sampling.prompt_logprobs is None:
            return range(0)
        row = contents.row_last
        if entry.start and (row is None or row.position != entry.start):
            return range(0)
        return range(entry.start, max(entry.start, min(entry.end, sampling.prompt_count)))
