"""What ingress and replicas say to each other: everything arrives as it was, or is refused."""

import contextlib
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any  # Any: a value of any parameter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney import errors
from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.params import SamplingParams, StructuredOutputsParams
from jitney.core.request import Priority, Request, RequestId, Share
from jitney.core.snapshot import Detail
from jitney.engine.answer import Answer, Delta
from jitney.sandbox.frames import MalformedFrame
from jitney.sandbox.sent_error import SentError
from jitney_cluster.replica_messages import (
    OrderAccepted,
    OrderCatchingUp,
    OrderDelta,
    OrderEnded,
    OrderStarted,
    ReplicaHello,
    ReplicaMessage,
    ReplicaState,
    decode_messages,
    decode_request,
    encode_frame,
    encode_request,
)
from tests.completions_for_tests import COMPLETION
from tests.snapshots_for_tests import FILLED

SCHEMA = {"type": "object", "properties": {"é": {"enum": [1, -2.5, None, True, [], {}]}}}
LOGPROBS = (TokenLogprob(5, -0.25, ((5, -0.25), (6, -3.0))), TokenLogprob(6, -1e-9))

PARAMETERS: dict[str, list[Any]] = {
    "n": [16],
    "temperature": [0.0, 0, 2],
    "top_p": [0.1],
    "top_k": [-1, 50],
    "min_p": [0.5],
    "repetition_penalty": [1.5],
    "frequency_penalty": [-2.0],
    "presence_penalty": [2.0],
    "logit_bias": [{}, {0: 1.5, 2**31 - 1: -100}],
    "seed": [0, -(2**63), 2**63 - 1],
    "stop": ["a", ["a", "\n\u00e9"], ("a", "b"), []],
    "stop_token_ids": [[1, 2], (3,)],
    "include_stop_str_in_output": [True],
    "ignore_eos": [True],
    "min_tokens": [5],
    "max_tokens": [None, 1000],
    "logprobs": [0, 20],
    "prompt_logprobs": [0, 3],
    "skip_special_tokens": [False],
    "structured_outputs": [
        StructuredOutputsParams(json=SCHEMA),
        StructuredOutputsParams(json='{"type": "string"}'),
        StructuredOutputsParams(json=True),
        StructuredOutputsParams(regex="[a-z]+"),
        StructuredOutputsParams(choice=["a", "b"]),
        StructuredOutputsParams(choice=("a",)),
        StructuredOutputsParams(grammar='start: "a"'),
    ],
}
"""Values of every parameter that are not its default."""


def request_of(params: SamplingParams | None = None, **values: object) -> Request:
    taken = {"id": RequestId("q"), "prompt": (1, 2), "seed": 3} | values
    return Request(params=params or SamplingParams(), **taken)  # type: ignore[arg-type]


def travelled(request: Request) -> Request:
    """The request as a replica gets it."""
    return decode_request(encode_request(request))


def meaning(params: SamplingParams) -> tuple[object, ...]:
    """All that the core reads of parameters. A list is as good as a tuple."""
    read = ("stop", "structured_outputs", "stop_table")
    values = tuple(getattr(params, each.name) for each in fields(params) if each.name not in read)
    return (*values, params.stop_table is None)


def test_the_table_has_every_parameter() -> None:
    """Guards new parameters: each is tried below."""
    assert set(PARAMETERS) == {each.name for each in fields(SamplingParams) if each.init}


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_arrives(name: str) -> None:
    """Guards replicas: a parameter that is lost changes the text, and nobody notices."""
    for value in PARAMETERS[name]:
        params = SamplingParams(**{name: value})
        arrived = travelled(request_of(params)).params
        assert meaning(arrived) == meaning(params)


@given(st.fixed_dictionaries({}, optional={k: st.sampled_from(v) for k, v in PARAMETERS.items()}))
def test_parameters_arrive_together(values: dict[str, Any]) -> None:
    try:
        params = SamplingParams(**values)
    except errors.InvalidRequest:
        return  # two of them contradict each other
    assert meaning(travelled(request_of(params)).params) == meaning(params)


TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=9).map(tuple)
SECONDS = st.none() | st.floats(0, 1e6)


@given(
    st.builds(
        Request,
        id=TEXTS.map(RequestId),
        prompt=TOKENS,
        params=st.just(SamplingParams(n=2)),
        seed=st.integers(-(2**63), 2**63 - 1),
        priority=st.sampled_from(Priority),
        tenant=TEXTS,
        reply_id=TEXTS,
        is_chat=st.booleans(),
        scope=TEXTS,
        share=st.none() | st.builds(Share, *[st.integers(1, 2**31)] * 3),
        queue_timeout_s=SECONDS,
        request_timeout_s=SECONDS,
        resumed=st.just(()) | st.tuples(TOKENS, st.none() | TOKENS) | st.tuples(st.none(), TOKENS),
    )
)
def test_every_field_of_a_request_arrives(request: Request) -> None:
    """Guards a request that moves: what was made, whose it is and how long it may last."""
    arrived = travelled(request)
    assert arrived == request
    assert type(arrived.priority) is Priority
    behind = replace(request, share=None, is_background=True)
    assert travelled(behind) == behind


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(request_of(tenant="\ud800"), id="half a character"),
        pytest.param(request_of(SamplingParams(stop="\ud800")), id="in a stop string"),
        pytest.param(request_of(seed=2**64), id="a number too large"),
        pytest.param(
            request_of(
                SamplingParams(structured_outputs=StructuredOutputsParams(json={"const": 2**70}))
            ),
            id="in a schema",
        ),
    ],
)
def test_what_cannot_be_sent_is_the_callers_mistake(request_: Request) -> None:
    with pytest.raises(errors.InvalidRequest, match="cannot be sent"):
        travelled(request_)


@pytest.mark.parametrize(
    "wrong",
    [
        {"params": {"temperature": 9.0}},
        {"params": {"made_up": 1}},
        {"params": {"n": "two"}},
        {"made_up": 1},
        {"priority": 9},
        {"share": {"waiting_max": 0, "waiting_tokens_max": 1, "running_max": 1}},
        {
            "share": {"waiting_max": 1, "waiting_tokens_max": 1, "running_max": 1},
            "is_background": True,
        },
        {"resumed": [None]},
        {"resumed": [[1], [2]]},
        {"prompt": None},
    ],
    ids=str,
)
def test_a_request_is_checked_where_it_arrives(wrong: dict[str, Any]) -> None:
    """Guards invariant 9 between two versions of the program."""
    values = msgspec.msgpack.decode(encode_request(request_of()))
    assert decode_request(msgspec.msgpack.encode(values)) == request_of()
    with pytest.raises(errors.InvalidRequest):
        decode_request(msgspec.msgpack.encode(values | wrong))


ANSWER = Answer(
    request=request_of(SamplingParams(n=2)),
    completions=(
        replace(COMPLETION, text="text", tokens=(1, 2), stop_reason="end", preempted_count=4),
        replace(
            COMPLETION,
            index=1,
            finish_reason=FinishReason.FAILED,
            stop_reason=7,
            message="It failed.",
        ),
    ),
    total_s=2.0,
    prompt_logprobs=LOGPROBS,
)
DELTA = Delta(
    index=1,
    text="é",
    tokens=(5, 6),
    logprobs=LOGPROBS,
    finish_reason=FinishReason.CANCELLED,
    stop_reason=9,
)
MESSAGES: list[ReplicaMessage] = [
    ReplicaHello("secret", "r1"),
    OrderAccepted("q", 1),
    OrderStarted("q", 1, 64),
    OrderCatchingUp("q", 1, is_catching_up=True),
    OrderDelta("q", 1, Delta(index=0, text="")),
    OrderDelta("q", 2, DELTA),
    OrderEnded.of("q", 1, ANSWER, None),
    OrderEnded.of("q", 1, None, errors.QueueFull("Full.", 2.5)),
    ReplicaState(FILLED, {"batches": 3.0}),
    ReplicaState(FILLED, {}, detail=Detail(1.0, (), (), ())),
]


def test_all_that_replicas_send_arrives_in_one_frame() -> None:
    assert decode_messages(encode_frame(MESSAGES)) == MESSAGES
    assert decode_messages(encode_frame([])) == []


def test_the_end_of_each_completion_arrives_without_what_went_out_before() -> None:
    """Guards the connection: a long answer would be sent twice, and its request a third time."""
    (ended,) = decode_messages(encode_frame([OrderEnded.of("q", 1, ANSWER, None)]))
    assert isinstance(ended, OrderEnded)
    assert (ended.failure, ended.prompt_logprobs) == (None, LOGPROBS)
    assert ended.completions == tuple(
        replace(each, text="", tokens=(), logprobs=None) for each in ANSWER.completions
    )


DECODERS: list[Callable[[bytes], object]] = [decode_request, decode_messages]
FRAMES = [
    encode_request(request_of()),
    encode_frame(MESSAGES),
]


@given(st.sampled_from(range(2)), st.data())
def test_a_damaged_frame_is_refused_or_read(which: int, data: st.DataObject) -> None:
    """Guards whoever reads: no other error, whatever bytes come."""
    frame = bytearray(FRAMES[which])
    for at in data.draw(st.lists(st.integers(0, len(frame) - 1), max_size=3)):
        frame[at] = data.draw(st.integers(0, 255))
    cut = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    arrived: object = None
    with contextlib.suppress(MalformedFrame, errors.InvalidRequest):
        arrived = DECODERS[which](cut)
    assert arrived is None or isinstance(arrived, Request | list)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="no MessagePack"),
        pytest.param(msgspec.msgpack.encode({"type": "Unknown"}), id="unknown message"),
        pytest.param(
            msgspec.msgpack.encode([{"type": "ReplicaHello", "secret": 1}]), id="wrong type"
        ),
        pytest.param(b"\x91" * 100_000, id="too deep"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="a length that does not come"),
    ],
)
def test_what_is_not_a_message_is_refused(decode: Callable[[bytes], object], frame: bytes) -> None:
    with pytest.raises((MalformedFrame, errors.InvalidRequest)):
        decode(frame)


def test_a_frame_that_is_cut_or_too_long_is_refused() -> None:
    for decode, frame in zip(DECODERS, FRAMES, strict=True):
        for damaged in (frame[:-1], frame + b"\x00"):
            with pytest.raises((MalformedFrame, errors.InvalidRequest)):
                decode(damaged)


def test_fields_of_another_version_are_refused() -> None:
    """Guards an upgrade: a part that one side does not know is not left out in silence."""
    frame = msgspec.msgpack.encode(
        [{"type": "OrderAccepted", "request_id": "q", "attempt": 1, "new": 1}]
    )
    with pytest.raises(MalformedFrame, match="unknown field"):
        decode_messages(frame)


KNOWN: list[errors.JitneyError] = [
    errors.InvalidRequest("It is wrong.", "top_p"),
    errors.InvalidRequest("It is wrong."),
    errors.InvalidRequest("is wrong.", "top_p", is_predicate=True),
    errors.ContextLengthExceeded("It is long.", "prompt"),
    errors.UnsupportedField("It is new.", "logprobs"),
    errors.QueueFull("It is full.", 2.5),
    errors.Draining("It ends."),
    errors.DeadlineExceeded("It is late."),
    errors.MissingDependency("It is not installed."),
    errors.BackendFailed("It failed."),
    errors.EngineStopped("It stopped."),
    errors.InputCrashed("It ended.", deaths=3),
]


def error_of(error: Exception) -> errors.JitneyError:
    """The error as the ingress gets it."""
    (ended,) = decode_messages(encode_frame([OrderEnded.of("q", 1, None, error)]))
    assert isinstance(ended, OrderEnded)
    assert ended.failure is not None
    return ended.failure.error()


@pytest.mark.parametrize("error", KNOWN, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_class_and_its_fields(error: errors.JitneyError) -> None:
    """Guards the status of a reply: 400, 429, 503 and 500 are told apart by the class."""
    arrived = error_of(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    for name in ("parameter", "retry_after_s", "deaths"):
        assert getattr(arrived, name, None) == getattr(error, name, None)


class AlikeInName(errors.InvalidRequest):
    """An error of which the other side knows nothing."""


@pytest.mark.parametrize(
    "error",
    [
        ValueError("some value"),
        RuntimeError(),
        errors.BackendCrashed("It crashed.", 11),
        AlikeInName("subclass"),
        type("QueueFull", (Exception,), {})("a namesake"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_unknown_error_is_a_failure_of_the_backend(error: Exception) -> None:
    arrived = error_of(error)
    assert type(arrived) is errors.BackendFailed
    assert type(error).__name__ in str(arrived)
    assert str(error) in str(arrived)
    assert type(SentError("OfTomorrow", "text").error()) is errors.BackendFailed
