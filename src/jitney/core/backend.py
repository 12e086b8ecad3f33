"""The seam between the engine and whatever runs the model: `Backend` and `Traits`.

Defined by the consumer. Batches, `reset` and `check` are the engine thread's only; `encode` and
`prepare` may be called from any thread at any time.

Tests: tests/conformance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint

Text = tuple[str, bool]
"""A text, and whether the names of control tokens in it are those tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a loaded backend can do, in numbers."""

    name: str
    slots_max: int
    kv_tokens: int
    """Tokens of memory, over all slots; shared tokens count once."""
    model_len_max: int
    """The longest sequence that the model was made for."""
    block_tokens: int = 1
    """Memory is taken in multiples of this many tokens."""
    can_save: bool = True
    kv_bytes_per_token: int = 0
    batch_invariant: bool = True
    """Whether a sequence's text is the same whatever stands beside it in the batch."""
    decodes_differ: bool = False
    """Whether a token that is computed by itself is rounded otherwise than one in a span. What was
    generated is then computed again token by token, and reused only as it was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The model's tokens as bytes, and what is special about some of them.

    `control` tokens stand for structure, not for text: their bytes are the name by which chat
    templates call them. `eos_tokens` end a completion.
    """

    pieces: tuple[bytes, ...]
    control: frozenset[int]
    eos_tokens: tuple[int, ...]
    bos_token: int | None = None
    adds_bos: bool = False
    chat_template: str | None = None


class Backend(Protocol):
    """Runs batches. Implemented in `jitney.backends`."""

    @property
    def traits(self) -> Traits:
        """Numbers that hold for as long as this backend lives."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""
        ...

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch. Raises BackendFailed (alive) or BackendCrashed (gone)."""
        ...

    def reset(self) -> None:
        """Empty every slot and every ticket; starts anew what crashed. Raises BackendCrashed."""
        ...

    def check(self) -> None:
        """See whether it still lives, while nothing runs. Cheap. Raises BackendCrashed."""
        ...

    def encode(self, texts: Sequence[Text]) -> list[int]:
        """Tokens of texts, one after the other: each is tokenised by itself, none is added."""
        ...

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""
        ...

    def close(self) -> None:
        """Release everything; idempotent."""
        ...


@runtime_checkable
class QueueingBackend(Protocol):
    """What a backend can besides that computes elsewhere: a batch may be sent to it while another
    is under way. Outcomes come back in the order of their batches."""

    def send(self, batch: Batch) -> None:
        """Hand a batch over. Raises BackendCrashed."""
        ...

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The outcome of the oldest batch that was sent; None when it takes longer than this.

        Raises BackendFailed or BackendCrashed. Those after it are then lost with it, and nothing
        may be sent before a reset.
        """
        ...
