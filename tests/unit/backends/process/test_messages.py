"""Messages between the engine's process and the backend's."""

import json
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney import errors
from jitney.backends.process.messages import (
    ERROR_KINDS,
    Done,
    Encode,
    Encoded,
    Execute,
    Executed,
    Failure,
    Hello,
    MalformedFrame,
    Message,
    Prepare,
    Ready,
    Reset,
    decode_message,
    encode_message,
    error_of,
    failure_of,
)
from jitney.core.backend import Traits, Vocabulary
from jitney.core.batch import (
    Batch,
    Copy,
    Discard,
    Entry,
    Open,
    Outcome,
    Release,
    Restore,
    Sample,
    Sampling,
    Save,
    TokenLogprob,
    Truncate,
)
from jitney.core.params import Constraint, ConstraintKind

whole = st.integers(-(2**63), 2**63)
count = st.integers(0, 2**31)
number = st.floats(allow_nan=False)
token_list = st.lists(count, max_size=5).map(tuple)
texts = st.text(max_size=20)
constraints = st.builds(Constraint, st.sampled_from(ConstraintKind), texts)
pairs = st.lists(st.tuples(count, number), max_size=3).map(tuple)
logprobs = st.builds(TokenLogprob, count, number, pairs)
samplings = st.builds(
    Sampling,
    seed=whole,
    prompt_count=count,
    temperature=number,
    top_k=count,
    top_p=number,
    min_p=number,
    repetition_penalty=number,
    frequency_penalty=number,
    presence_penalty=number,
    logit_bias=pairs,
    min_tokens=count,
    end_tokens=token_list,
    logprobs=st.none() | count,
    prompt_logprobs=st.none() | count,
    constraint=st.none() | constraints,
)
operations = st.one_of(
    st.builds(Open, count, samplings),
    st.builds(Copy, count, count, count),
    st.builds(Truncate, count, count),
    st.builds(Save, count, count),
    st.builds(Restore, count, count),
    st.builds(Release, count),
    st.builds(Discard, count),
)
entries = st.builds(Entry, count, count, token_list, st.booleans(), st.booleans())
batches = st.builds(
    Batch,
    whole,
    st.lists(operations, max_size=4).map(tuple),
    st.lists(entries, max_size=4).map(tuple),
)
samples = st.builds(
    Sample,
    st.none() | count,
    st.none() | logprobs,
    st.lists(logprobs, max_size=2).map(tuple),
    st.none() | texts,
)
outcomes = st.builds(Outcome, whole, st.lists(samples, max_size=4).map(tuple), number)
traits = st.builds(
    Traits,
    name=texts,
    slots_max=count,
    kv_tokens=count,
    model_len_max=count,
    block_tokens=count,
    can_save=st.booleans(),
    kv_bytes_per_token=count,
    batch_invariant=st.booleans(),
    decodes_differ=st.booleans(),
)
vocabularies = st.builds(
    Vocabulary,
    pieces=st.lists(st.binary(max_size=4), max_size=6).map(tuple),
    control=st.frozensets(count, max_size=3),
    eos_tokens=token_list,
    bos_token=st.none() | count,
    adds_bos=st.booleans(),
    chat_template=st.none() | texts,
)
plain = st.none() | st.booleans() | whole | number | texts
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Hello, texts, st.dictionaries(texts, plain, max_size=4)),
    st.builds(Ready, traits, vocabularies),
    st.builds(Execute, batches),
    st.builds(Executed, outcomes),
    st.just(Reset()),
    st.just(Done()),
    st.builds(
        Encode,
        st.lists(
            st.tuples(st.text(st.characters(exclude_categories=())), st.booleans()), max_size=4
        ).map(tuple),
    ),
    st.builds(Encoded, token_list),
    st.builds(Prepare, constraints),
    st.builds(Failure, st.sampled_from(sorted(ERROR_KINDS)), texts, st.none() | texts),
)
json_values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=20,
)
KINDS = ["hello", "ready", "execute", "executed", "encode", "encoded", "prepare", "failure", "done"]


@given(messages)
def test_a_message_comes_back_as_it_was(message: Message) -> None:
    """Guards against a field that is lost, reordered or rounded on the way."""
    assert decode_message(encode_message(message)) == message


@given(st.sampled_from(KINDS), st.lists(json_values, max_size=8))
@settings(max_examples=300)
def test_any_json_is_a_message_or_refused(kind: str, values: list[object]) -> None:
    """Guards against a strange frame that raises something nobody catches."""
    frame = json.dumps([kind, *values]).encode()
    try:
        message = decode_message(frame)
    except MalformedFrame:
        return
    assert decode_message(encode_message(message)) == message


@given(st.binary(max_size=60))
def test_any_bytes_are_refused(frame: bytes) -> None:
    """Guards against damage on the pipe; no short random bytes are a message."""
    with pytest.raises(MalformedFrame):
        decode_message(frame)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"{}",
        b"[]",
        b"[[]]",
        b'["launch"]',
        b'["reset",1]',
        b'["execute",1,[],[0],[0],[1],[2],[5]]',
        b'["execute",1,[],[0],[0],[9],[1],[5]]',
        b'["execute",1,[],[0],[0],[1],[1],["5"]]',
        b'["execute",1,[],[0],[0],[1],[1],[true]]',
        b'["execute",1,[["format","disk"]],[],[],[],[],[]]',
        b'["execute",1,[["copy",1,2]],[],[],[],[],[]]',
        b'["encoded",[1.5]]',
        b'["failure","SystemExit","bye",null]',
        b'["executed",1,[],1' + b"0" * 400 + b"]",
        b'["prepare","python","import os"]',
        b"[" * 100_000,
    ],
)
def test_a_wrong_shape_is_refused(frame: bytes) -> None:
    """Guards against values of a wrong type that go on to native code."""
    with pytest.raises(MalformedFrame):
        decode_message(frame)


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequest("no such thing.", "logit_bias"),
        errors.UnsupportedField("not here."),
        errors.ConfigError("slots must be at least 1."),
        errors.ModelError("the file is damaged."),
        errors.MissingDependency("install it."),
        errors.BackendFailed("memory is full."),
    ],
)
def test_an_error_keeps_its_class(error: errors.JitneyError) -> None:
    """Guards against a mistake of the caller that is reported as a crash."""
    returned = error_of(failure_of(error))
    assert type(returned) is type(error)
    assert str(returned) == str(error)
    assert getattr(returned, "parameter", None) == getattr(error, "parameter", None)


def test_an_unexpected_error_becomes_a_failed_batch() -> None:
    """Guards against an exception that cannot cross the pipe and is lost."""
    returned = error_of(failure_of(KeyError("row")))
    assert isinstance(returned, errors.BackendFailed)
    assert "KeyError" in str(returned)


def test_frames_are_ascii() -> None:
    """Guards against text that one side writes and the other cannot read, such as half a pair."""
    frame = encode_message(Encode((("\ud800 naïve", False), ("<s>", True))))
    assert all(chr(byte) in string.printable for byte in frame)
