"""The loads of `jitney bench serve`: which flags belong to which dataset."""

import json
from pathlib import Path

import pytest

from jitney.cli.flags import parse
from jitney.errors import ConfigError
from jitney_lab.bench.workload import Workload
from jitney_lab.cli.load_options import described, workload_of
from jitney_lab.cli.serve_load_verb import SERVE_LOAD_VERB, ServeLoadOptions


def options(*words: str | Path) -> ServeLoadOptions:
    found = parse(SERVE_LOAD_VERB, [str(word) for word in words]).options
    assert isinstance(found, ServeLoadOptions)
    return found


def load(*words: str | Path) -> Workload:
    return workload_of(options(*words))


def lengths(workload: Workload) -> set[tuple[int, int]]:
    return {(job.prompt_count, job.completion_count) for job in workload.jobs}


def test_lengths_have_vllms_names_and_ours() -> None:
    """Guards pasted command lines: both spellings mean the same load."""
    ours = load("--num-prompts", "3", "--input-len", "7", "--output-len", "5")
    theirs = load(
        *("--dataset-name", "random", "--num-prompts", "3"),
        *("--random-input-len", "7", "--random-output-len", "5"),
    )
    assert ours == theirs
    assert (len(ours.jobs), lengths(ours)) == (3, {(7, 5)})


def test_prompts_may_share_one_of_several_beginnings() -> None:
    words = ("--prefix-repetition-prefix-len", "6", "--prefix-repetition-suffix-len", "2")
    more = ("--prefix-repetition-num-prefixes", "3", "--prefix-repetition-output-len", "4")
    found = load("--dataset-name", "prefix_repetition", "--num-prompts", "60", *words, *more)
    assert lengths(found) == {(8, 4)}
    assert len({tuple(job.text(0).split()[:6]) for job in found.jobs}) == 3


def test_prompts_of_a_custom_file_are_sent_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    lines = [{"prompt": "What is the capital?", "output_tokens": 9}, {"prompt": "Why?"}]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ("--dataset-name", "custom", "--dataset-path", file)
    found = load(*words, "--disable-shuffle")
    assert [job.text(3) for job in found.jobs] == ["What is the capital?", "Why?"]
    assert [job.completion_count for job in found.jobs] == [9, 256]
    assert {job.completion_count for job in load(*words, "--custom-output-len", "4").jobs} == {4}
    assert len(load(*words, "--num-prompts", "5").jobs) == 5
    assert len(load(*words, "--num-prompts", "5", "--no-oversample").jobs) == 2
    told = described(options(*words))
    assert told["load"] == {"dataset_name": "custom", "dataset": "mine.jsonl", "output_len": None}
    with pytest.raises(ConfigError, match="line 2 has no output_tokens"):
        load(*words, "--custom-output-len", "-1")


def test_sharegpt_takes_the_first_question_and_the_length_of_its_answer(tmp_path: Path) -> None:
    file = tmp_path / "talks.json"
    talk = [{"from": "human", "value": "a" * 40}, {"from": "gpt", "value": "b" * 80}]
    file.write_text(json.dumps([{"id": "1", "conversations": talk}]))
    words = ("--dataset-name", "sharegpt", "--dataset-path", file, "--num-prompts", "1")
    (job,) = load(*words).jobs
    assert (job.text(0), job.prompt_count, job.completion_count) == ("a" * 40, 10, 20)
    assert {job.completion_count for job in load(*words, "--sharegpt-output-len", "3").jobs} == {3}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--dataset-name", "sonnet"), "--dataset-name sonnet is not taken here; there are random"),
        (("--dataset-name", "trace"), "--dataset-name trace is not taken here"),
        (("--dataset-name", "timed_trace"), "is not needed"),
        (("--dataset-name", "custom"), "needs a file"),
        (("--dataset-name", "random", "--dataset-path", "x"), "--dataset-path would not be used"),
        (("--custom-output-len", "5"), "--custom-output-len would not be used with --dataset-name"),
        (("--no-oversample",), "--no-oversample would not be used"),
        (("--dataset-path", "x", "--input-len", "5"), "--input-len would not be used"),
        (("--dataset-path", "x", "--random-range-ratio", "0"), "--random-range-ratio would not be"),
        (("--dataset-path", "x", "--skip-chat-template"), "--skip-chat-template would not"),
        (
            ("--dataset-name", "custom", "--dataset-path", "x", "--random-output-len", "5"),
            "--random-output-len would not be used with --dataset-name custom",
        ),
        (("--input-len", "5", "--random-input-len", "6"), "are the same length"),
        (("--random-output-len", "0"), "--random-output-len is 0"),
        (("--prefix-repetition-num-prefixes", "0"), "--prefix-repetition-num-prefixes is 0"),
        (
            ("--dataset-name", "custom", "--dataset-path", "x", "--custom-output-len", "0"),
            "--custom-output-len is 0",
        ),
        (("--num-warmups", "-1"), "--num-warmups is -1"),
    ],
)
def test_a_flag_without_a_use_is_refused(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(*words)


@pytest.mark.parametrize(("rate", "is_told"), [("0.000001", True), ("10", False), ("inf", False)])
def test_a_load_of_hours_is_told_before_it_begins(
    rate: str, capsys: pytest.CaptureFixture[str], *, is_told: bool
) -> None:
    """Guards patience: a rate with too many zeros took weeks without a word."""
    load("--num-prompts", "3", "--request-rate", rate)
    assert ("hours; if that is too long" in capsys.readouterr().err) is is_told
