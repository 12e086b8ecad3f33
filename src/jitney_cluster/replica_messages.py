"""What the ingress and the replicas say to each other, in MessagePack. Any thread may call.

An order (`Run`) goes to a replica as the argument of a call on Ray. What comes of it goes back over
one connection between each replica and each ingress (`jitney_cluster.back_channel`): a call on
Ray for every token would take as much time as the token. msgspec checks every type when it reads,
and runs no code. All times are durations, because clocks of two machines differ.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any  # Any: plain values of a parameter

import msgspec

from jitney import errors
from jitney.core.backend import Traits, Vocabulary
from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.params import SamplingParams, StructuredOutputsParams
from jitney.core.request import Priority, Request, RequestId, Share
from jitney.core.scheduler_settings import GroupAnswers, Mix, Policy, SchedulerSettings, Strategy
from jitney.core.snapshot import Detail, Snapshot
from jitney.engine.answer import Answer, Completion, Delta, Timing, Usage
from jitney.sandbox.frames import MalformedFrame
from jitney.sandbox.sent_error import SentError

DESCRIPTION_BYTES_MAX = 2**26
"""Ten times the largest vocabulary that is known."""

_CHOICES = {"strategy": Strategy, "policy": Policy, "mix": Mix, "group_answers": GroupAnswers}


class _Said(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """A message. The name of its class is sent with its fields."""


class Address(msgspec.Struct, frozen=True):
    """Where an ingress listens for its replicas. Its secret tells it that they are its own."""

    ingress: str
    host: str
    port: int
    secret: str


class Wanted(msgspec.Struct, frozen=True):
    """A request on its way, in plain values. `params` has those that are not the default."""

    id: str
    prompt: tuple[int, ...]
    params: dict[str, Any]
    seed: int
    priority: int
    tenant: str
    reply_id: str
    is_chat: bool
    scope: str
    share: tuple[int, int, int] | None
    queue_timeout_s: float | None
    request_timeout_s: float | None
    is_background: bool
    resumed: tuple[tuple[int, ...] | None, ...]
    waited_s: float | None

    @classmethod
    def of(cls, request: Request) -> "Wanted":
        """The message for a request."""
        share = request.share
        return cls(
            id=request.id,
            prompt=request.prompt,
            params=_plain_params(request.params),
            seed=request.seed,
            priority=int(request.priority),
            tenant=request.tenant,
            reply_id=request.reply_id,
            is_chat=request.is_chat,
            scope=request.scope,
            share=None
            if share is None
            else (share.waiting_max, share.waiting_tokens_max, share.running_max),
            queue_timeout_s=request.queue_timeout_s,
            request_timeout_s=request.request_timeout_s,
            is_background=request.is_background,
            resumed=request.resumed,
            waited_s=request.waited_s,
        )

    def request(self) -> Request:
        """The request. Raises InvalidRequest where a parameter is out of range."""
        if self.priority not in set(Priority) or (self.share is not None and min(self.share) < 1):
            raise errors.InvalidRequest("The class or the share of a request is out of range.")
        if self.is_background and self.share is not None:
            raise errors.InvalidRequest("A background request has no share.")
        params = _params_of(self.params)
        if self.resumed and all(each is None for each in self.resumed):
            raise errors.InvalidRequest("Nothing is left to be made of a resumed request.")
        return Request(
            id=RequestId(self.id),
            prompt=self.prompt,
            params=params,
            seed=self.seed,
            priority=Priority(self.priority),
            tenant=self.tenant,
            reply_id=self.reply_id,
            is_chat=self.is_chat,
            scope=self.scope,
            share=None if self.share is None else Share(*self.share),
            queue_timeout_s=self.queue_timeout_s,
            request_timeout_s=self.request_timeout_s,
            is_background=self.is_background,
            resumed=self.resumed,
            waited_s=self.waited_s,
        )


class Run(_Said, frozen=True):
    """Run a request, and tell the ingress at this address what comes of it."""

    address: Address
    number: int
    """Numbers of an ingress grow with every order."""
    attempt: int
    """Which engine in a row this is for the request, from 1."""
    waited_s: float
    """Since the request arrived."""
    wanted: Wanted
    model_key: str
    """The model that it is for. Beside replicas of a new model, those of the old one run on."""


class Description(_Said, frozen=True):
    """What a replica has loaded."""

    model_name: str
    model_key: str
    traits: Traits
    vocabulary: Vocabulary
    settings: dict[str, Any]
    """The settings of its scheduler that are plain values."""

    def scheduler_settings(self) -> SchedulerSettings:
        """The settings of its scheduler. Raises MalformedFrame."""
        try:
            chosen = {name: kind(self.settings[name]) for name, kind in _CHOICES.items()}
            return SchedulerSettings(**{**self.settings, **chosen})
        except (KeyError, TypeError, ValueError) as error:
            raise MalformedFrame(f"The settings are not those of a scheduler ({error}).") from error


class ReplicaHello(_Said, frozen=True):
    """The first message of a connection, from a replica."""

    secret: str
    replica: str


class Accepted(_Said, frozen=True):
    """The engine has taken the request."""

    id: str
    attempt: int


class Started(_Said, frozen=True):
    """The request has its first slot there."""

    id: str
    attempt: int
    cached_count: int


class CatchingUp(_Said, frozen=True):
    """Whether the request still computes what was computed elsewhere before, and goes on to."""

    id: str
    attempt: int
    is_so: bool


class Made(_Said, frozen=True):
    """A delta of the request."""

    id: str
    attempt: int
    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    @classmethod
    def of(cls, request_id: str, attempt: int, delta: Delta) -> "Made":
        """The message for a delta."""
        return cls(
            request_id,
            attempt,
            delta.index,
            delta.text,
            delta.tokens,
            delta.logprobs,
            delta.finish_reason,
            delta.stop_reason,
        )

    def delta(self) -> Delta:
        """The delta."""
        return Delta(
            index=self.index,
            text=self.text,
            tokens=self.tokens,
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )


class End(msgspec.Struct, frozen=True):
    """How one completion ended. Its text and its tokens went out before."""

    index: int
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage
    preempted_count: int
    message: str | None


class Ended(_Said, frozen=True):
    """The request has ended there: it was answered, or it failed."""

    id: str
    attempt: int
    ends: tuple[End, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    failure: SentError | None = None

    @classmethod
    def of(
        cls, request_id: str, attempt: int, answer: Answer | None, error: Exception | None
    ) -> "Ended":
        """The message for an ending."""
        completions = () if answer is None else answer.completions
        return cls(
            request_id,
            attempt,
            tuple(
                End(
                    each.index,
                    each.finish_reason,
                    each.stop_reason,
                    each.usage,
                    each.preempted_count,
                    each.message,
                )
                for each in completions
            ),
            None if answer is None else answer.prompt_logprobs,
            None if error is None else SentError.of(error, "replica"),
        )

    def answer(self, request: Request) -> Answer | None:
        """What the engine said of the completions that ended there; None if it said nothing."""
        if not self.ends:
            return None
        completions = tuple(
            Completion(
                index=each.index,
                text="",
                tokens=(),
                logprobs=None,
                cumulative_logprob=None,
                finish_reason=each.finish_reason,
                stop_reason=each.stop_reason,
                usage=each.usage,
                timing=Timing(queue_s=None, first_token_s=None, total_s=0.0),
                preempted_count=each.preempted_count,
                message=each.message,
            )
            for each in self.ends
        )
        return Answer(
            request=request,
            completions=completions,
            total_s=0.0,
            prompt_logprobs=self.prompt_logprobs,
        )


class State(_Said, frozen=True):
    """The replica lives; its levels and its sums. Sent every BEAT_S, also when nothing happens."""

    snapshot: Snapshot
    sums: dict[str, float]
    is_ready: bool = True
    """Whether its backend lives."""


class ReplicaDetail(_Said, frozen=True):
    """What an ingress asked to see: which request holds which slot. Times are the replica's."""

    detail: Detail
    snapshot: Snapshot


OfRequest = Accepted | Started | CatchingUp | Made | Ended
"""What a replica tells of one request."""

Told = ReplicaHello | OfRequest | State | ReplicaDetail
"""What a replica tells an ingress."""

_ENCODER = msgspec.msgpack.Encoder()
_RUN: msgspec.msgpack.Decoder[Run] = msgspec.msgpack.Decoder(Run)
_DESCRIPTION: msgspec.msgpack.Decoder[Description] = msgspec.msgpack.Decoder(Description)
_TOLD: msgspec.msgpack.Decoder[list[Told]] = msgspec.msgpack.Decoder(list[Told])


def encode_one(message: Run | Description) -> bytes:
    """A message as bytes. Raises InvalidRequest for a value that cannot be sent."""
    try:
        return _ENCODER.encode(message)
    except (UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise errors.InvalidRequest(f"This value cannot be sent: {error}.") from None


def encode_told(messages: list[Told]) -> bytes:
    """Messages of a replica as one frame."""
    return _ENCODER.encode(messages)


def decode_run(frame: bytes) -> Run:
    """An order. Raises MalformedFrame."""
    with _checked():
        return _RUN.decode(frame)


def decode_description(frame: bytes) -> Description:
    """A description. Raises MalformedFrame."""
    if len(frame) > DESCRIPTION_BYTES_MAX:
        raise MalformedFrame(f"A description of {len(frame)} bytes is that of no model.")
    with _checked():
        return _DESCRIPTION.decode(frame)


def decode_told(frame: bytes) -> list[Told]:
    """The messages of a frame. Raises MalformedFrame."""
    with _checked():
        return _TOLD.decode(frame)


@contextmanager
def _checked() -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise MalformedFrame(f"The frame is not a message ({error}).") from error


_PARAMS = tuple(each for each in fields(SamplingParams) if each.init)


def _plain_params(params: SamplingParams) -> dict[str, Any]:
    values = {
        each.name: getattr(params, each.name)
        for each in _PARAMS
        if getattr(params, each.name) != each.default
    }
    structured = values.get("structured_outputs")
    if structured is not None:
        names = (each.name for each in fields(StructuredOutputsParams))
        values["structured_outputs"] = {name: getattr(structured, name) for name in names}
    return values


def _params_of(values: dict[str, Any]) -> SamplingParams:
    structured = values.get("structured_outputs")
    if structured is not None:
        values = {**values, "structured_outputs": StructuredOutputsParams(**structured)}
    try:
        return SamplingParams(**values)
    except TypeError as error:
        raise errors.InvalidRequest(f"An unknown parameter came: {error}.") from None
