"""The interface between the engine and the code that runs the model: `Backend` and `Traits`.

Only the engine thread runs batches and calls `reset` and `check`. Any thread may call `encode` and
`prepare` at any time.

Tests: tests/conformance.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jitney.core.batch import Batch, Outcome
from jitney.core.params import Constraint

Segment = tuple[str, bool]
"""A part of a prompt, and whether names of control tokens in it become those tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a loaded backend can do, in numbers."""

    name: str
    slots_max: int
    kv_tokens: int
    """Tokens of memory in all slots. Shared tokens count once."""
    model_len_max: int
    """The longest sequence that the model supports."""
    block_tokens: int = 1
    """Memory is taken in multiples of this many tokens."""
    can_save: bool = True
    can_store: bool = False
    """Whether it has a disk for prefixes."""
    kv_bytes_per_token: int = 0
    state_bytes: int = 0
    """The recurrent state of a slot, beside keys and values; 0 where layers keep none."""
    batch_invariant: bool
    """Whether the text of a sequence does not depend on the rest of the batch."""
    decodes_differ: bool = False
    """Whether a token that is computed alone is rounded differently from one in a span. Generated
    tokens are then computed again one by one, and reused only as they were computed."""

    @property
    def rewinds(self) -> bool:
        """Whether a slot can be cut back to a prefix. A recurrent state is there for all of its
        tokens or not at all."""
        return self.state_bytes == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The model's tokens as bytes, and which of them are special.

    `control` tokens mark structure and are not text. Their bytes are their names in chat templates.
    `eos_tokens` end a completion.
    """

    pieces: tuple[bytes, ...]
    control: frozenset[int]
    eos_tokens: tuple[int, ...]
    bos_token: int | None = None
    adds_bos: bool = False
    chat_template: str | None = None

    def text(self, token: int | None) -> str | None:
        """One token as text, with U+FFFD for bytes that are no character; None if it has none."""
        if token is None or not 0 <= token < len(self.pieces):
            return None
        return self.pieces[token].decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Fetch:
    """Look for a stored prefix of these tokens, and keep its memory under `ticket`."""

    ticket: int
    scope: str
    tokens: tuple[int, ...]
    least: int
    """A shorter one is of no use."""
    held_max: int
    """The most tokens that the stored memory may have, also those that are not of use."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was found: the first `length` tokens, in a memory of `held` ones; 0 where nothing was.

    If something was, its ticket is to be restored or discarded.
    """

    ticket: int
    length: int = 0
    held: int = 0


class TextBackend(Protocol):
    """The part of a backend that makes requests from texts. Any thread may call."""

    @property
    def traits(self) -> Traits:
        """Numbers that do not change while this backend lives."""

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""

    def encode(self, texts: Sequence[Segment]) -> list[int]:
        """Tokens of all texts in order. Each text is tokenised alone; no token is added."""

    def prepare(self, constraint: Constraint) -> None:
        """Compile a constraint ahead of use, in bounded time. Raises InvalidRequest."""


class Backend(TextBackend, Protocol):
    """Runs batches. Implemented in `jitney.backends`."""

    def execute(self, batch: Batch) -> Outcome:
        """Carry out a batch. Raises BackendFailed (alive) or BackendCrashed (gone)."""

    def reset(self) -> None:
        """Empty every slot and ticket; restart what has crashed. Raises BackendCrashed."""

    def check(self) -> None:
        """Check that the backend still lives, while no batch runs. Cheap. Raises BackendCrashed."""

    def close(self) -> None:
        """Release everything; idempotent."""


@runtime_checkable
class StoringBackend(Protocol):
    """A backend that may have a disk for prefixes."""

    def fetch(self, asked: Fetch) -> Fetched:
        """Look for a stored prefix. Takes as long as the disk does, while batches run; any thread,
        one at a time. Raises an EngineError."""


@runtime_checkable
class QueueingBackend(Protocol):
    """A backend that computes elsewhere, and takes a batch while another one runs. Outcomes come
    back in the order of their batches."""

    def send(self, batch: Batch) -> None:
        """Hand a batch over. Raises BackendCrashed."""

    def receive(self, limit_s: float | None = None) -> Outcome | None:
        """The outcome of the oldest batch sent; None when it does not come within `limit_s`.

        Raises BackendFailed or BackendCrashed. Later batches are then lost too, and nothing may be
        sent before a reset.
        """
