"""Messages between the engine's process and the backend's."""

from collections.abc import Mapping
from enum import Enum
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints  # Any: any type

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney import errors
from jitney.backends.process.messages import (
    Encode,
    Encoded,
    Execute,
    Failure,
    Message,
    decode_message,
    encode_message,
)
from jitney.core.batch import Batch, Decodes, Entry
from jitney.sandbox.frames import MalformedFrame

LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=20),
    bytes: st.binary(max_size=4),
    bool: st.booleans(),
    type(None): st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that messages have. Every field is drawn, with a default or without."""
    origin, inner = get_origin(kind), [values(each) for each in get_args(kind) if each is not ...]
    if kind in LEAVES:
        return LEAVES[kind]
    if origin in (Union, UnionType):
        return st.one_of(inner)
    if origin is tuple and ... in get_args(kind):
        return st.lists(inner[0], max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*inner)
    if origin is frozenset:
        return st.frozensets(inner[0], max_size=3)
    if origin is Mapping:
        return st.dictionaries(*inner, max_size=4)
    if issubclass(kind, Enum):
        return st.sampled_from(kind)
    fields = {name: values(each) for name, each in get_type_hints(kind).items()}
    if kind is Failure:
        fields["kind"] = st.sampled_from(KINDS_OF_ERRORS)
    return st.builds(kind, **fields)


KINDS_OF_ERRORS = ["InvalidRequest", "QueueFull", "ConfigError", "BackendFailed"]
OTHERS = [kind for kind in get_args(Message) if kind is not Execute]
messages: st.SearchStrategy[Message] = st.one_of(
    values(Batch).map(Execute.of), *(values(kind) for kind in OTHERS)
)
plain_values = st.recursive(
    st.one_of(list(LEAVES.values())),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(LEAVES[str], inner, max_size=3),
    max_leaves=20,
)


def read(frame: bytes) -> Message | Batch:
    """The message in a frame, or the batch in it; raises MalformedFrame as a worker would."""
    message = decode_message(frame)
    return message.batch() if isinstance(message, Execute) else message


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Guards against a field that is lost, reordered or rounded on the way."""
    frame = encode_message(message)
    if isinstance(message, Execute):
        operations = tuple([each for _, each in message.operations])
        batch = Batch(message.number, operations, message.spans, message.decodes)
        assert read(frame) == batch
    else:
        assert read(frame) == message


@given(messages, st.data())
@settings(max_examples=300)
def test_any_value_in_a_message_is_taken_or_refused(message: Message, data: st.DataObject) -> None:
    """Guards against a strange frame that raises something nobody catches."""
    fields = msgspec.msgpack.decode(encode_message(message))
    fields[data.draw(st.sampled_from([*fields, "type", "unknown"]))] = data.draw(plain_values)
    try:
        found = read(msgspec.msgpack.encode(fields))
    except MalformedFrame:
        return
    if isinstance(found, Batch):
        assert read(encode_message(Execute.of(found))) == found
    else:
        assert read(encode_message(found)) == found


@given(st.binary(max_size=60))
def test_any_bytes_are_refused(frame: bytes) -> None:
    """Guards against damage on the pipe; no short random bytes are a message."""
    with pytest.raises(MalformedFrame):
        decode_message(frame)


@given(messages, st.data())
def test_a_frame_that_was_cut_is_refused(message: Message, data: st.DataObject) -> None:
    """Guards against an answer of which the end is missing."""
    frame = encode_message(message)
    with pytest.raises(MalformedFrame):
        decode_message(frame[: data.draw(st.integers(0, len(frame) - 1))])


ENTRY = {"slot": 0, "start": 0, "tokens": [5], "wants_token": True, "continues": False}


DECODES = {"slots": [1], "starts": [7], "tokens": [5]}


def execute(operations: object = (), **fields: object) -> dict[str, object]:
    """A batch of one entry, of which these fields are otherwise."""
    entries = [{**ENTRY, **fields}]
    fields = {"number": 1, "operations": operations, "spans": entries, "decodes": DECODES}
    return {"type": "Execute", **fields}


def test_the_wrong_shapes_below_are_wrong_in_one_place_only() -> None:
    """Guards the test after this one: it would pass for any batch that cannot be read."""
    assert read(msgspec.msgpack.encode(execute())) == Batch(
        1, (), (Entry(0, 0, (5,), True),), Decodes((1,), (7,), (5,))
    )


@pytest.mark.parametrize(
    "value",
    [
        *(None, [], {}, {"type": []}, {"type": "Launch"}, {"type": "Reset", "more": 1}),
        *(execute(slot="0"), execute(start=0.5), execute(wants_token=9), execute(continues=None)),
        *(execute(tokens=5), execute(tokens=["5"]), execute(tokens=[True])),
        execute(operations=[["Format", {"disk": 1}]]),
        execute(operations=[["Copy", {"source": 1, "target": 2}]]),
        execute(operations=[["Copy", [1, 2, 3]]]),
        execute(operations=[["Release"]]),
        {"type": "Encoded", "tokens": [[1.5]]},
        {"type": "Failure", "kind": "SystemExit", "text": "bye"},
        {"type": "Executed", "outcome": {"number": 1, "samples": [], "seconds": "1"}},
        {"type": "Executed", "outcome": {"number": 1, "samples": [5], "seconds": 1.0}},
        {"type": "Prepare", "constraint": {"kind": "python", "text": "import os"}},
    ],
)
def test_a_wrong_shape_is_refused(value: object) -> None:
    """Guards against values of a wrong type that go on to native code."""
    with pytest.raises(MalformedFrame):
        read(msgspec.msgpack.encode(value))


@pytest.mark.parametrize("frame", [b"", b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff"])
def test_a_hostile_frame_is_refused(frame: bytes) -> None:
    """Guards the stack and the memory: nesting without end, and a count of 2**32."""
    with pytest.raises(MalformedFrame):
        decode_message(frame)


def sent(error: Exception) -> errors.JitneyError:
    """An error as it arrives on the other side."""
    failure = decode_message(encode_message(Failure.of(error, "backend")))
    assert isinstance(failure, Failure)
    return failure.error()


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("no such thing.", "logit_bias"),
        errors.UnsupportedField("not here."),
        errors.ConfigError("slots must be at least 1."),
        errors.ModelError("the file is damaged."),
        errors.MissingDependency("install it."),
        errors.BackendFailed("memory is full."),
        errors.QueueFull("others are before it.", 2.5),
    ],
)
def test_an_error_keeps_its_class(error: errors.JitneyError) -> None:
    """Guards against a mistake of the caller that is reported as a crash."""
    returned = sent(error)
    assert type(returned) is type(error)
    assert str(returned) == str(error)
    assert vars(returned) == vars(error)


def test_an_unexpected_error_becomes_a_failed_batch() -> None:
    """Guards against an exception that cannot cross the pipe and is lost."""
    returned = sent(KeyError("row"))
    assert isinstance(returned, errors.BackendFailed)
    assert "KeyError" in str(returned)


def test_an_error_may_hold_what_is_no_character() -> None:
    """Guards a name of a file that is not UTF-8: its error must arrive."""
    assert str(sent(errors.ModelError("there is no a\udcff.gguf."))) == "there is no a?.gguf."


@pytest.mark.parametrize(
    "message", [Encode((("\ud800 naïve", False), ("<s>", True))), Encoded(((2**64,),))]
)
def test_what_no_message_can_carry_is_the_callers_mistake(message: Message) -> None:
    """Guards against half a surrogate pair, or a huge number, that looks like a crash."""
    with pytest.raises(errors.InvalidRequest, match="cannot be sent"):
        encode_message(message)
