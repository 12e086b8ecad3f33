"""What the ingress and the replicas send to each other. Any thread may call.

An order goes to a replica as the argument of a call on Ray, with its request in MessagePack. What
comes of it goes back over one connection between each replica and each ingress
(`jitney_cluster.back_channel`): a call on Ray for every token would take as much time as the token.
The dataclasses of `jitney` are sent as they are. On that connection msgspec checks every type when
it reads, and runs no code; arguments and results of calls, `Description` among them, are Ray's. All
times are durations, because clocks of two machines differ.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, Self  # Any: an object that is not sent

import msgspec

from jitney.core.backend import Traits, Vocabulary
from jitney.core.batch import TokenLogprob
from jitney.core.params import SamplingParams
from jitney.core.request import Request
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, Snapshot
from jitney.core.stops import StopTable
from jitney.engine.answer import Answer, Completion, Delta
from jitney.errors import InvalidRequest
from jitney.sandbox.frames import MalformedFrame
from jitney.sandbox.sent_error import SentError
from jitney_cluster.routing import Head


class _TaggedMessage(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A message. The name of its class is sent with its fields."""


class Address(msgspec.Struct, frozen=True):
    """Where an ingress listens for its replicas. By its secret it knows that they are its own."""

    ingress: str
    host: str
    port: int
    secret: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Run a request, and send the ingress at this address what comes of it.

    The router reads `head`, `avoided` and `begun`, and the replica the rest.
    """

    address: Address
    number: int
    """Numbers of an ingress grow with every order."""
    attempt: int
    """Which engine in a row this is for the request, from 1."""
    waited_s: float
    """Since the request arrived."""
    model_key: str
    """The model that it is for. Beside replicas of a new model, those of the old one run on."""
    request_id: str
    request: bytes
    """For `decode_request`."""
    head: Head
    avoided: tuple[str, ...] = ()
    """Replicas that cannot take it."""
    begun: tuple[tuple[str, int], ...] = ()
    """Orders of this ingress that have got their first token since the order before this one: on
    which replica, and their numbers."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a replica has loaded."""

    model_name: str
    model_key: str
    traits: Traits
    vocabulary: Vocabulary
    settings: SchedulerSettings


class ReplicaHello(_TaggedMessage, frozen=True):
    """The first message of a connection, from a replica."""

    secret: str
    replica: str


class OrderMessage(_TaggedMessage, frozen=True):
    """What a replica sends about one request."""

    request_id: str
    attempt: int


class OrderAccepted(OrderMessage, frozen=True):
    """The engine has taken the request."""


class OrderStarted(OrderMessage, frozen=True):
    """The request has its first slot there."""

    cached_count: int


class OrderCatchingUp(OrderMessage, frozen=True):
    """Whether the request still computes what was computed elsewhere before, and goes on to."""

    is_catching_up: bool


class OrderDelta(OrderMessage, frozen=True):
    """New text of the request."""

    delta: Delta


class OrderEnded(OrderMessage, frozen=True):
    """The request has ended there: it was answered, or it failed."""

    completions: tuple[Completion, ...] = ()
    """Without texts, tokens and logprobs, which went out before."""
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    failure: SentError | None = None

    @classmethod
    def of(
        cls, request_id: str, attempt: int, answer: Answer | None, error: Exception | None
    ) -> Self:
        """The message for an ending."""
        completions = () if answer is None else answer.completions
        return cls(
            request_id,
            attempt,
            tuple(replace(each, text="", tokens=(), logprobs=None) for each in completions),
            None if answer is None else answer.prompt_logprobs,
            None if error is None else SentError.of(error, "replica"),
        )


class ReplicaState(_TaggedMessage, frozen=True):
    """The replica lives; its levels and its sums. Sent every BEAT_S, also when nothing happens."""

    snapshot: Snapshot
    sums: dict[str, float]
    is_ready: bool = True
    """Whether its backend lives."""
    detail: Detail | None = None
    """Which request holds which slot, if an ingress asks for it. Times are the replica's."""


ReplicaMessage = (
    ReplicaHello
    | ReplicaState
    | OrderAccepted
    | OrderStarted
    | OrderCatchingUp
    | OrderDelta
    | OrderEnded
)
"""What a replica sends to an ingress."""


def _without_stop_table(value: Any) -> None:
    """The table of stop strings is not sent: sampling parameters make it from their own."""
    if not isinstance(value, StopTable):
        raise NotImplementedError(f"{type(value).__name__} is not sent")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_without_stop_table)
_MESSAGES: msgspec.msgpack.Decoder[list[ReplicaMessage]] = msgspec.msgpack.Decoder(
    list[ReplicaMessage]
)
_KNOWN = {kind: {each.name for each in fields(kind)} for kind in (Request, SamplingParams)}


def encode_request(request: Request) -> bytes:
    """A request as bytes. Raises InvalidRequest for a value that cannot be sent."""
    try:
        return _ENCODER.encode(request)
    except (UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"This value cannot be sent: {error}.") from None


def decode_request(data: bytes) -> Request:
    """The request. Raises InvalidRequest where it is damaged or out of range.

    A field that only another version knows is refused too, and not left out in silence.
    """
    try:
        values = msgspec.msgpack.decode(data)
        unknown = (set(values) - _KNOWN[Request]) | (set(values["params"]) - _KNOWN[SamplingParams])
        if unknown:
            raise ValueError(f"unknown: {', '.join(map(str, unknown))}")
        request = msgspec.convert(values, Request)
    except (ValueError, TypeError, KeyError, AssertionError, RecursionError) as error:
        raise InvalidRequest(f"The request cannot be read ({error}).") from error
    if request.resumed and not request.resumed_tokens:
        raise InvalidRequest("Nothing is left to be made of a resumed request.")
    return request


def encode_frame(messages: list[ReplicaMessage]) -> bytes:
    """Messages of a replica as one frame."""
    return _ENCODER.encode(messages)


def decode_messages(frame: bytes) -> list[ReplicaMessage]:
    """The messages of a frame. Raises MalformedFrame."""
    try:
        return _MESSAGES.decode(frame)
    except (ValueError, RecursionError) as error:
        raise MalformedFrame(f"The frame is not a message ({error}).") from error
