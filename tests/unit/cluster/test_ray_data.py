"""`RowAnswers` over the fake backend: columns, seeds, rows that fail, calls at the same time."""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from jitney import LLM, RowAnswers, SamplingParams, StructuredOutputsParams
from jitney.errors import ConfigError, EngineStopped, InvalidRequest
from jitney_cluster.ray_data import OUTPUT_COLUMNS, Column

WAIT_S = 60.0
PROMPTS = ("the bus", "a stop", "late again")


@pytest.fixture(scope="module")
def answers() -> Iterator[RowAnswers]:
    """One engine for the tests that leave no trace in it. Its queue is shorter than batches are."""
    made = RowAnswers(
        backend="fake", max_model_len=128, max_num_seqs=2, max_num_queued_reqs=2, max_tokens=8
    )
    yield made
    made.close()


def column(*values: object) -> Column:
    """A column as Ray Data gives one that is not of numbers."""
    return np.fromiter(values, object, len(values))


def texts(answered: Mapping[str, Column]) -> list[str]:
    assert not any(answered["error"]), answered["error"]
    return list(answered["text"])


def test_rows_are_answered_as_the_engine_answers_alone(answers: RowAnswers) -> None:
    """Guards order, counts, and the columns that only pass through."""
    seeds = np.arange(40)
    prompts = column(*(PROMPTS[at % 3] for at in seeds))
    batch = {"prompt": prompts, "seed": seeds, "n": seeds}
    answered = answers.answer(batch)
    with LLM(backend="fake", max_model_len=128) as llm:
        expected = llm.generate(
            list(prompts), [SamplingParams(max_tokens=8, seed=int(each)) for each in seeds]
        )
    assert list(answered) == [*batch, *OUTPUT_COLUMNS]
    assert all(list(answered[name]) == list(batch[name]) for name in batch)
    made = [each.outputs[0] for each in expected]
    assert texts(answered) == [each.text for each in made]
    assert list(answered["finish_reason"]) == [each.finish_reason for each in made]
    counts = [each.metrics for each in expected]
    assert list(answered["prompt_tokens"]) == [each.prompt_tokens for each in counts]
    assert answered["completion_tokens"].dtype == np.int64
    assert list(answered["completion_tokens"]) == [each.completion_tokens for each in counts]


def test_an_answer_depends_on_its_row_alone(answers: RowAnswers) -> None:
    """Guards a batch that runs again after its actor died: another actor, another order."""
    first = dict(zip(PROMPTS, texts(answers.answer({"prompt": column(*PROMPTS)})), strict=True))
    assert len(set(first.values())) == len(PROMPTS)
    for seed, is_same in ((0, True), (1, False)):
        other = RowAnswers(backend="fake", max_model_len=128, max_tokens=8, seed=seed)
        again = texts(other.answer({"prompt": column(*reversed(PROMPTS), PROMPTS[0])}))
        other.close()
        assert again[0] != again[1]
        assert again[-1] == again[-2], "equal rows have equal texts"
        assert (again[:3] == [first[each] for each in reversed(PROMPTS)]) is is_same
    seeds = np.array([1, 2])
    several = texts(answers.answer({"prompt": column("the bus", "the bus"), "seed": seeds}))
    assert several[0] != several[1]


def test_messages_are_read_as_arrow_gives_them(answers: RowAnswers) -> None:
    """Guards nested arrays, and keys that only other rows have a value for."""
    spoken = {"role": "user", "content": "hello", "name": None}
    parts = np.array([{"type": "text", "text": "hello", "more": None}], object)
    conversations = column(
        np.array([spoken], object), [{"role": "user", "content": parts}], column("hello")
    )
    answered = answers.answer({"messages": conversations})
    assert answered["text"][0] == answered["text"][1] != ""
    assert answered["error"][2] == "messages[0] must be an object with a role and a content."


def test_nested_values_stay_what_they_were(answers: RowAnswers) -> None:
    """Guards columns that pass through: Ray pickles arrays in arrays, and cannot write those."""
    nested = np.array([{"at": np.float64(1.5), "of": None}], object)
    batch = {
        "prompt": column("a", "b"),
        "nested": column(nested, float("nan")),
        "vectors": np.ones((2, 3)),
    }
    answered = answers.answer(batch)
    assert list(answered["nested"]) == [[{"at": 1.5, "of": None}], None]
    assert answered["vectors"] is batch["vectors"]


def test_columns_are_parameters_of_their_row(answers: RowAnswers) -> None:
    """Guards nulls, which make a column of whole numbers one of floats."""
    batch = {
        "prompt": column("x", "x", "x", [104, 105]),
        "max_tokens": np.array([3, np.nan, 2.5, 4]),
        "ignore_eos": np.array([True] * 4),
        "temperature": np.array([0.0, 0.0, 0.0, 9.0]),
        "stop": column(None, None, None, ["a", "b"]),
    }
    answered = answers.answer(batch)
    assert list(answered["completion_tokens"]) == [3, 8, 0, 0]
    assert list(answered["finish_reason"]) == ["length", "length", "error", "error"]
    assert answered["error"][2].startswith("max_tokens must be a whole number")
    assert answered["error"][3].startswith("temperature must be a number from 0 to 2")
    seeds = np.array([float(2**60), 1.0])
    answered = answers.answer({"prompt": column("x", "x"), "seed": seeds})
    assert "seed must be a whole number" in answered["error"][0], "a float has lost digits of it"
    assert answered["error"][1] == ""


def test_a_row_that_fails_stops_no_other(answers: RowAnswers) -> None:
    """Guards a long job: the sentence is in the row, and the rest is answered."""
    prompts = column(*["the bus"] * 9, "x" * 500, None, 7, [10**9], float("nan"), "the bus")
    answered = answers.answer({"prompt": prompts})
    failed = [bool(each) for each in answered["error"]]
    assert failed == [False] * 9 + [True] * 5 + [False]
    assert set(answered["text"][:9]) == {answered["text"][14]} != {""}
    sentences = list(answered["error"][9:14])
    assert "500 tokens" in sentences[0]
    assert sentences[1] == "A row needs a prompt or messages, and this one has neither."
    assert sentences[2].startswith("A prompt is a text")
    assert sentences[3].startswith("prompt has 1000000000")
    assert sentences[4] == sentences[1]
    both = {"prompt": column("a"), "messages": column([{"role": "user", "content": "a"}])}
    assert answers.answer(both)["error"][0].endswith("has both.")


def test_a_batch_without_rows_has_the_columns(answers: RowAnswers) -> None:
    answered = answers.answer({"prompt": column()})
    assert {name: len(each) for name, each in answered.items()} == dict.fromkeys(
        ("prompt", *OUTPUT_COLUMNS), 0
    )


def test_a_batch_that_cannot_be_answered_says_why(answers: RowAnswers) -> None:
    """Guards a job against a million rows with the same mistake."""
    with pytest.raises(InvalidRequest, match="prompt or messages, and this one has id, question"):
        answers.answer({"id": column(1), "question": column("why")})
    with pytest.raises(InvalidRequest, match="a column text, and the batch has one already"):
        answers.answer({"prompt": column("a"), "text": column("b")})
    frame: Any = [("prompt", "a")]  # Any: what the type refuses
    with pytest.raises(InvalidRequest, match="is of the type list; leave batch_format"):
        answers.answer(frame)


def test_arguments_are_parameters_and_settings() -> None:
    """Guards both kinds in one mapping, and what would have no effect."""
    with pytest.raises(InvalidRequest, match="n has no effect on rows"):
        RowAnswers(backend="fake", n=2)
    with pytest.raises(InvalidRequest, match="temperature"):
        RowAnswers(backend="fake", temperature=3)
    with pytest.raises(ConfigError, match="max_token"):
        RowAnswers(backend="fake", max_token=3)
    chosen = StructuredOutputsParams(choice=["yes", "no"])
    made = RowAnswers(backend="fake", structured_outputs=chosen)
    assert texts(made.answer({"prompt": column("is it?")}))[0] in ("yes", "no")
    made.close()


def test_calls_at_the_same_time_share_the_engine() -> None:
    """Guards batches that overlap: here no request starts before four are there."""
    made = RowAnswers(backend="fake", strategy="static", max_num_seqs=4, max_wait_ms=60_000)
    batches = [{"prompt": column(each)} for each in (*PROMPTS, "a fourth")]

    async def call_all() -> list[dict[str, Column]]:
        async with asyncio.timeout(WAIT_S / 2):
            return await asyncio.gather(*map(made, batches))

    answered = asyncio.run(call_all())
    assert len({texts(each)[0] for each in answered}) == len(batches)
    made.close()


def test_an_engine_that_stops_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards a job against a million rows with the same error."""

    def broken(*arguments: object) -> None:
        raise AssertionError("the ledger is wrong")

    made = RowAnswers(backend="fake")
    monkeypatch.setattr("jitney.core.scheduler.Scheduler.apply", broken)
    for _ in ("while they run", "before they are sent"):
        with pytest.raises(EngineStopped, match="the ledger is wrong"):
            made.answer({"prompt": column(*PROMPTS)})
    made.close()
