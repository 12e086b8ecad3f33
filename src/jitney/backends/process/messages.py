"""The messages between the engine's process and the backend's, in MessagePack.

msgspec checks every type when it reads, and runs no code: a damaged or hostile frame raises
MalformedFrame. The dataclasses of `jitney.core` are sent as they are; only memory operations need
their kind beside them. One thread at a time uses a `Channel`, and any other may close it.
"""

from collections.abc import Mapping
from typing import Any, Self, get_args  # Any: an operation, or its fields before they are checked

import msgspec

from jitney import errors
from jitney.backends.shared.prefix_place import PrefixPlace
from jitney.core.backend import Fetch, Fetched, Segment, Traits, Vocabulary
from jitney.core.batch import Batch, Decodes, Entry, MemoryOperation, Outcome
from jitney.core.params import Constraint
from jitney.sandbox.frames import Frames, MalformedFrame
from jitney.sandbox.sent_error import SENT, SentError

Plain = str | int | float | bool | None

_OPERATIONS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in get_args(MemoryOperation)}


class _Tagged(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A message. The name of its class is sent with its fields."""


class Hello(_Tagged, frozen=True):
    """Build this backend. The first message, from the engine's side."""

    backend: str
    settings: Mapping[str, Plain]
    prefixes: PrefixPlace | None = None


class Ready(_Tagged, frozen=True):
    """The backend is built."""

    traits: Traits
    vocabulary: Vocabulary


class Execute(_Tagged, frozen=True):
    """Carry out a batch; answered by Executed or Failure."""

    number: int
    operations: tuple[tuple[str, Any], ...]
    spans: tuple[Entry, ...]
    decodes: Decodes

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The message for a batch."""
        operations = tuple([(type(each).__name__, each) for each in batch.operations])
        return cls(batch.number, operations, batch.spans, batch.decodes)

    def batch(self) -> Batch:
        """The batch of a message that was read. Raises MalformedFrame."""
        try:
            operations = [
                msgspec.convert(each, _OPERATIONS[kind]) for kind, each in self.operations
            ]
        except (KeyError, ValueError) as error:
            raise MalformedFrame(f"A memory operation has a wrong shape ({error}).") from error
        return Batch(self.number, tuple(operations), self.spans, self.decodes)


class Executed(_Tagged, frozen=True):
    """The outcome of a batch."""

    outcome: Outcome


class Reset(_Tagged, frozen=True):
    """Empty every slot and ticket; answered by Done or Failure."""


class Encode(_Tagged, frozen=True):
    """Tokenise texts, each by itself; answered by Encoded or Failure."""

    texts: tuple[Segment, ...]


class Encoded(_Tagged, frozen=True):
    """The tokens of each text of one message, in order."""

    tokens: tuple[tuple[int, ...], ...]


class Prepare(_Tagged, frozen=True):
    """Compile a constraint; answered by Done or Failure."""

    constraint: Constraint


class Look(_Tagged, frozen=True):
    """Look for a stored prefix; answered by Looked or Failure."""

    asked: Fetch


class Looked(_Tagged, frozen=True):
    """What was found of it."""

    found: Fetched


class Done(_Tagged, frozen=True):
    """The work is done, and there is nothing to return."""


class Failure(SentError, frozen=True, tag=True, forbid_unknown_fields=True):
    """The work failed. Both sides are of one version, so a kind without a name is damage."""

    def __post_init__(self) -> None:
        if self.kind not in SENT:
            raise ValueError(f"there is no error of kind {self.kind[:40]!r}")


Message = (
    Hello
    | Ready
    | Execute
    | Executed
    | Reset
    | Encode
    | Encoded
    | Prepare
    | Look
    | Looked
    | Done
    | Failure
)

_ENCODER = msgspec.msgpack.Encoder()
_DECODER: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


class Channel:
    """One end of a pair of sockets. Sends and receives messages."""

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self.close = frames.close
        self.is_readable = frames.is_readable

    def send(self, message: Message, limit_s: float | None = None) -> None:
        """Send a message whole. Raises ChannelClosed, TimeoutError or InvalidRequest."""
        self._frames.send(encode_message(message), limit_s)

    def receive(self, limit_s: float | None = None) -> Message:
        """Wait for a message. Raises ChannelClosed, TimeoutError or MalformedFrame."""
        return decode_message(self._frames.receive(limit_s))


def encode_message(message: Message) -> bytes:
    """A message as bytes. Raises InvalidRequest for a value that cannot be sent."""
    try:
        return _ENCODER.encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        # Half of a surrogate pair, or a number of more than 64 bits.
        raise errors.InvalidRequest(f"This value cannot be sent to the backend: {error}.") from None


def decode_message(frame: bytes) -> Message:
    """The message in a frame. Raises MalformedFrame."""
    try:
        return _DECODER.decode(frame)
    except (ValueError, RecursionError) as error:
        raise MalformedFrame(f"The frame is not a message ({error}).") from error
