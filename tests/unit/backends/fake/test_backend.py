"""The fake backend: its oracle, its strictness, and its count of memory."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.batch import (
    Batch,
    Copy,
    Entry,
    MemoryOperation,
    Open,
    Release,
    Restore,
    Sampling,
    Save,
    Store,
    Truncate,
)
from jitney.core.params import SamplingParams, StructuredOutputsParams
from jitney.errors import BackendFailed
from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode
from tests.expected_completion import expected_completion, sampling_of

PROMPT = tuple(encode("What is a jitney? It is a small bus with no timetable.", special=False))
END = byte_vocabulary().eos_tokens[0]
SMALL = FakeSettings(slots=4, kv_tokens=64, model_len_max=48, max_num_batched_tokens=40)


def completion(backend: FakeBackend, slot: int, params: SamplingParams, seed: int) -> list[int]:
    """Run one request to its end, as an engine would."""
    ends = () if params.ignore_eos else (END,)
    sampling = sampling_of(params, seed, len(PROMPT), ends)
    batch = Batch(1, (Open(slot, sampling),), (Entry(slot, 0, PROMPT, True),))
    tokens: list[int] = []
    assert params.max_tokens is not None
    while True:
        (sample,) = backend.execute(batch).samples
        assert sample.token is not None, sample.fault
        if sample.token in ends:
            return tokens
        tokens.append(sample.token)
        if len(tokens) == params.max_tokens:
            return tokens
        start = len(PROMPT) + len(tokens) - 1
        batch = Batch(batch.number + 1, (), (Entry(slot, start, (sample.token,), True),))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0, max_tokens=200),
        SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True),
        SamplingParams(temperature=1.0, max_tokens=200),
        SamplingParams(temperature=0.8, top_p=0.9, max_tokens=60),
        SamplingParams(temperature=1.2, top_k=20, min_p=0.01, max_tokens=60),
        SamplingParams(temperature=0.0, frequency_penalty=1.5, logprobs=2, max_tokens=60),
        SamplingParams(temperature=0.0, min_tokens=50, max_tokens=60),
        SamplingParams(
            temperature=1.0,
            max_tokens=60,
            structured_outputs=StructuredOutputsParams(regex="[a-f]{8} (yes|no)"),
        ),
    ],
)
def test_completion_is_the_expected_one(params: SamplingParams) -> None:
    """Guards against an oracle that disagrees with its backend on some parameter."""
    backend = FakeBackend(FakeSettings(eos_period=40, kv_tokens=4096))
    for seed in (1, -5, 2**62):
        assert params.max_tokens is not None
        found = completion(backend, 3, params, seed)
        expected = expected_completion(
            PROMPT, params, seed, eos_period=40, tokens_max=params.max_tokens
        )
        assert found == expected
        backend.reset()


def test_seed_matters_only_for_draws() -> None:
    """Guards against greedy answers that depend on the seed, and draws that do not."""
    greedy = SamplingParams(temperature=0.0, max_tokens=20)
    drawn = SamplingParams(temperature=1.0, max_tokens=20)

    def expected(params: SamplingParams, seed: int) -> list[int]:
        return expected_completion(PROMPT, params, seed, eos_period=0, tokens_max=20)

    assert expected(greedy, 1) == expected(greedy, 2)
    assert expected(drawn, 1) != expected(drawn, 2)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_mistake_in_memory_changes_the_answer(data: st.DataObject) -> None:
    """Guards against a hash that forgets: odds of a chance collision are below one in a million.

    One stored token is altered, dropped or swapped; the next 20 tokens must differ.
    """
    tokens = list(PROMPT)
    at = data.draw(st.integers(0, len(tokens) - 2))
    kind = data.draw(st.sampled_from(["alter", "drop", "swap"]))
    if kind == "alter":
        tokens[at] = (tokens[at] + data.draw(st.integers(1, 200))) % 256
    elif kind == "drop":
        del tokens[at]
    else:
        tokens[at], tokens[at + 1] = tokens[at + 1], tokens[at]
    params = SamplingParams(temperature=0.0, max_tokens=20)
    wrong = expected_completion(tuple(tokens), params, 0, eos_period=0, tokens_max=20)
    right = expected_completion(PROMPT, params, 0, eos_period=0, tokens_max=20)
    if tuple(tokens) != PROMPT:
        assert wrong != right


def test_text_has_whole_and_broken_characters() -> None:
    """Guards against answers too tame to try the detokenizer."""
    params = SamplingParams(temperature=0.0, max_tokens=3000)
    tokens = expected_completion(PROMPT, params, 0, eos_period=0, tokens_max=3000)
    single = b"".join(bytes([token]) if token < 256 else b" " for token in tokens)
    text = single.decode("utf-8", "replace")
    assert "\ufffd" in text
    assert any(ord(character) > 127 and character != "\ufffd" for character in text)
    assert sum(token >= 256 for token in tokens) > len(tokens) / 2


@pytest.mark.parametrize("period", [0, 20])
def test_end_tokens_come_at_their_rate(period: int) -> None:
    """Guards against completions that never end, or always; odds of failure below 1e-9."""
    params = SamplingParams(temperature=0.0, max_tokens=4000, ignore_eos=True)
    tokens = expected_completion(PROMPT, params, 0, eos_period=period, tokens_max=4000)
    count = tokens.count(END)
    assert (100 < count < 300) if period else count == 0


def entry(slot: int, start: int, length: int, **flags: bool) -> Entry:
    """A span of zeros."""
    return Entry(slot, start, (0,) * length, flags.pop("wants_token", False), **flags)


OPENED = Open(0, Sampling(seed=0, prompt_count=4))
FILLED = Batch(1, (), (entry(0, 0, 10), entry(1, 0, 5)))


@pytest.mark.parametrize(
    ("operations", "entries", "message"),
    [
        ((), (entry(0, 9, 1),), "starts at 9"),
        ((), (entry(0, 11, 1),), "holds 10"),
        ((), (entry(4, 0, 1),), "does not exist"),
        ((), (entry(-1, 0, 1),), "does not exist"),
        ((), (entry(2, 0, 0),), "is empty"),
        ((), (entry(2, 0, 1), entry(2, 1, 1)), "twice"),
        ((), (entry(2, 0, 20), entry(3, 0, 21)), "the limit is 40"),
        ((), (entry(0, 10, 39),), "holds at most 48"),
        ((), (Entry(0, 10, (99_999,), False),), "vocabulary"),
        ((), (Entry(0, 10, (3, -1), False),), "vocabulary"),
        ((), (entry(0, 10, 1, wants_token=True),), "never opened"),
        ((OPENED, Release(0)), (entry(0, 0, 1, wants_token=True),), "never opened"),
        ((OPENED,), (Entry(0, 10, (), True, continues=True),), "has sampled none"),
        ((OPENED,), (entry(0, 10, 1, continues=True),), "given as well"),
        ((Copy(0, 1, 3),), (), "holds 5 tokens"),
        ((Copy(0, 2, 11),), (), "which holds 10"),
        ((Copy(0, 2, 0),), (), "which holds 10"),
        ((Copy(0, 7, 1),), (), "does not exist"),
        ((Truncate(0, 11),), (), "it holds 10"),
        ((Truncate(0, -1),), (), "it holds 10"),
        ((Save(2, 1),), (), "is empty"),
        ((Save(0, 1), Save(1, 1)), (), "is taken"),
        ((Restore(1, 2),), (), "ticket 1"),
        ((Store(0, "scope", 11),), (), "which holds 10"),
        ((Save(0, 1), Restore(1, 1)), (), "holds 5 tokens"),
        ((Save(0, 1), Restore(1, 2), Restore(1, 3)), (), "ticket 1"),
        ((), (entry(2, 0, 40),), None),
        ((Save(0, 1), Restore(1, 2)), (entry(3, 0, 40),), "Memory is full"),
    ],
)
def test_a_broken_promise_fails_the_batch(
    operations: tuple[MemoryOperation, ...], entries: tuple[Entry, ...], message: str | None
) -> None:
    """Guards against a scheduler's mistake that passes unseen."""
    backend = FakeBackend(SMALL)
    backend.execute(FILLED)
    if message is None:
        backend.execute(Batch(2, operations, entries))
        return
    with pytest.raises(BackendFailed, match=message):
        backend.execute(Batch(2, operations, entries))
    backend.reset()
    backend.execute(FILLED)


def test_saving_can_be_switched_off() -> None:
    """Guards against a scheduler that saves where the backend cannot."""
    backend = FakeBackend(replace(SMALL, can_save=False))
    backend.execute(FILLED)
    assert not backend.traits.can_save
    with pytest.raises(BackendFailed, match="not to save"):
        backend.execute(Batch(2, (Save(0, 1),), ()))


def test_time_is_told_and_slept_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against simulations that really wait."""
    slept: list[float] = []
    for sleeps in (False, True):
        timed = replace(SMALL, tick_s=0.5, token_s=0.25, sleeps=sleeps)
        backend = FakeBackend(timed)
        monkeypatch.setattr("jitney.backends.fake.backend.sleep", slept.append)
        assert backend.execute(FILLED).seconds == 0.5 + 15 * 0.25
    assert slept == [0.5 + 15 * 0.25]


def test_memory_that_is_no_whole_number_of_blocks_is_not_promised() -> None:
    """Guards against a last block that the scheduler counts on and nobody has."""
    blocks = FakeBackend(FakeSettings(kv_tokens=100, block_tokens=16))
    assert blocks.traits.kv_tokens == 96
