"""What the simulation sees of the core and the engine, as values that checkers read.

Everything that crosses the seam of the scheduler, of the backend and of the mailboxes is reported
as one of these, at the moment it happens and before the engine acts on it. Checkers keep their own
records from them and never look inside the scheduler.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from jitney.backends.fake.backend import FakeBackend
from jitney.core.backend import Fetch
from jitney.core.backend import Fetched as Found
from jitney.core.batch import Batch, TokenLogprob
from jitney.core.events import Event, LifeEvent, TokensEvent
from jitney.core.request import Request, RequestId
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Delta, Ending
from jitney.errors import JitneyError

Name = tuple[RequestId, int]
"""A sequence: its request and its index among the request's completions."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One token of those that a scheduler reports together."""

    request_id: RequestId
    index: int
    at: float
    token: int
    logprob: TokenLogprob | None = None


OneEvent = LifeEvent | TokenEvent


def one_by_one(events: Iterable[Event]) -> Iterator[OneEvent]:
    """The same events, with each token by itself."""
    for event in events:
        if not isinstance(event, TokensEvent):
            yield event
            continue
        for place, (name, token) in enumerate(zip(event.names, event.tokens, strict=True)):
            yield TokenEvent(*name, event.at, token, event.logprobs.get(place))


class Violation(BaseException):
    """A checker's verdict. No `Exception`, because the tick rightly survives all of those."""

    def __init__(self, checker: str, sentence: str) -> None:
        super().__init__(f"{checker}: {sentence}")
        self.checker = checker
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request was handed in; `error` is its refusal. The counts are those from before: for a live
    request of live ones, for a background one of all."""

    at: float
    request: Request
    waiting_count: int
    waiting_tokens: int
    error: JitneyError | None = None

    @property
    def names(self) -> set[Name]:
        """Its sequences."""
        return {(self.request.id, index) for index in range(self.request.params.n)}


@dataclass(frozen=True, slots=True)
class Planned:
    """The scheduler planned; `owners` of slots and `snapshot` are those from right after.

    `in_haste`: before an outcome, though the scheduler had said to wait for it.
    """

    at: float
    batch: Batch | None
    owners: Mapping[int, Name]
    snapshot: Snapshot
    in_haste: bool


@dataclass(frozen=True, slots=True)
class Steered:
    """Somebody asked for a pause, a resume, another class, or a drain, which is nobody's."""

    at: float
    kind: str
    request_id: RequestId


@dataclass(frozen=True, slots=True)
class Executed:
    """The fake backend carried a batch out, and no fault had a hand in it."""

    batch: Batch
    backend: FakeBackend
    stored: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """What slots held that were to be stored, by slot."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The scheduler asked the disk for a prefix."""

    at: float
    fetch: Fetch


@dataclass(frozen=True, slots=True)
class Answered:
    """The disk's answer reached the scheduler."""

    at: float
    found: Found


@dataclass(frozen=True, slots=True)
class Read:
    """The backend has these tokens under the ticket of a fetch now."""

    ticket: int
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Injected:
    """A fault was put into a batch; `slot` is there when it is that of one entry only."""

    kind: str
    batch: Batch
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Happened:
    """Events came out of the scheduler by this method; `batch` when an outcome was applied."""

    at: float
    method: str
    events: tuple[OneEvent, ...]
    batch: Batch | None = None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A reader took something out of a request's mailbox."""

    request: Request
    item: Delta | Ending
    streams: bool


@dataclass(frozen=True, slots=True)
class Ticked:
    """A turn is over. `started_at` is the moment the engine took for its beginning."""

    number: int
    started_at: float
    at: float
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Detailed:
    """Somebody looked at memory and queue in detail."""

    detail: Detail
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Stopped:
    """The engine gave up; everybody who lived was told."""

    at: float


@dataclass(frozen=True, slots=True)
class Rested:
    """Nothing lives any more, or the engine stopped; every mailbox was read to its end."""

    at: float
    snapshot: Snapshot
    was_stopped: bool


Seen = (
    Submitted
    | Planned
    | Steered
    | Executed
    | Asked
    | Answered
    | Read
    | Injected
    | Happened
    | Fetched
    | Ticked
    | Detailed
    | Stopped
    | Rested
)

Tell = Callable[[Seen], None]


class Checker(Protocol):
    """One invariant, watched from outside. Raises Violation under its own name."""

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
