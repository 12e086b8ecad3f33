"""An example of a backend: a Llama in numpy, with one pass for all tokens of a batch.

Read it, and begin your own from it. Weights are unpacked to float32, and numpy computes everything.
Code that any backend needs is in `ModelBackend`. A backend of jitney also has a `kind.py`: see
CONTRIBUTING.md. The conformance tests run this one too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any  # Any: numbers as a trial wrote them down

from examples.numpy_backend.llama import Floats, Llama
from examples.numpy_backend.token_cells import TokenCells
from jitney.backends.shared.model_backend import ModelBackend
from jitney.backends.shared.slots import EntryRows, SlotMemory
from jitney.core.backend import Backend, Segment, Traits
from jitney.errors import ModelError
from jitney.tokenizers.tokenizer import read_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpySettings:
    """Which model, and how much memory. Plain values, because they may go to another process."""

    model: str
    slots: int
    kv_tokens: int
    max_num_batched_tokens: int


def make_backend(settings: NumpySettings) -> Backend:
    """The backend, with its model loaded. Raises a SetupError."""
    return ModelBackend(NumpyModel(settings))


class NumpyModel:
    """Implements `jitney.backends.shared.model_backend.ForwardModel` in numpy.

    The file must be a plain Llama; a `kind.py` would refuse others.
    """

    wants_slot_order = False

    def __init__(self, settings: NumpySettings) -> None:
        path = Path(settings.model)
        self._llama = llama = Llama(path)
        self._tokenizer = read_tokenizer(path)
        self.vocabulary = self._tokenizer.vocabulary
        if llama.vocabulary_count != len(self.vocabulary.pieces):
            raise ModelError(
                f"{path} has weights for {llama.vocabulary_count} tokens, and its tokenizer has "
                f"{len(self.vocabulary.pieces)}."
            )
        self.max_num_batched_tokens = settings.max_num_batched_tokens
        self.slot_tokens_max = llama.length_max
        self.cells = TokenCells(settings.slots, settings.kv_tokens, llama.token_shape)
        self.traits = Traits(
            name="numpy",
            slots_max=settings.slots,
            kv_tokens=settings.kv_tokens,
            model_len_max=llama.length_max,
            kv_bytes_per_token=self.cells.token_bytes,
            batch_invariant=True,
        )

    def forward(self, laid_out: Sequence[EntryRows], memory: SlotMemory[Floats]) -> Floats:
        """The rows of logits that these entries want."""
        tokens: list[int] = []
        contexts: list[list[int]] = []
        wanted: list[int] = []
        for each in laid_out:
            entry = each.entry
            places = self.cells.grow(entry.slot, entry.length)
            tokens += each.tokens
            contexts += [places[: position + 1] for position in range(entry.start, entry.end)]
            # The last row of an entry is for its last position.
            wanted += range(len(tokens) - len(each.rows), len(tokens))
        hidden = self._llama.forward(tokens, contexts, self.cells.kv)
        return self._llama.logits(hidden[wanted])

    def use_shape(self, shape: Mapping[str, Any]) -> None:
        """Does nothing: every token is computed alone."""

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of texts, one after the other."""
        encode = self._tokenizer.encode
        return [token for text, special in texts for token in encode(text, special=special)]

    def close(self) -> None:
        """There is nothing to release but arrays."""
