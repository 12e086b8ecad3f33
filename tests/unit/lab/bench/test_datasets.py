"""Prompts from files: what is read, in which order, and what is refused."""

import json
from pathlib import Path

import pytest

from jitney.errors import ConfigError
from jitney_lab.bench import datasets
from jitney_lab.bench.datasets import Choosing, FilePrompt, read_custom, read_sharegpt

PROMPTS = [FilePrompt(f"prompt {number}", 5) for number in range(20)]


def chosen(count: int | None, *, shuffles: bool = False, seed: int = 1) -> list[str]:
    choosing = Choosing(
        count=count, shuffles=shuffles, repeats=True, per_s=10.0, burstiness=1.0, seed=seed
    )
    workload = choosing.workload("x", PROMPTS)
    times = [job.at_s for job in workload.jobs]
    assert times == sorted(times)
    return [job.text(0) for job in workload.jobs]


def test_the_order_comes_from_the_seed() -> None:
    """Guards runs that are compared: the same seed gives the same requests."""
    own = [each.text for each in PROMPTS]
    assert chosen(None) == own
    assert chosen(None, shuffles=True) == chosen(None, shuffles=True) != own
    assert chosen(None, shuffles=True, seed=2) != chosen(None, shuffles=True)
    assert chosen(23) == own + own[:3]
    assert chosen(2) == own[:2]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "has no prompts"),
        ("\n{}\n", "line 2: .*prompt"),
        ('{"prompt": ""}', "line 1 has an empty prompt"),
        ('{"prompt": "a", "output_tokens": 0}', "line 1: "),
        ('{"prompt": "' + "a" * 200 + '"}', "a line of above 100 bytes"),
    ],
)
def test_a_wrong_custom_file_is_refused(
    content: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "LINE_BYTES_MAX", 100)
    file = tmp_path / "x.jsonl"
    file.write_text(content)
    with pytest.raises(ConfigError, match=sentence):
        read_custom(file, None, 7)


def test_conversations_without_an_answer_or_of_extreme_length_are_left_out(tmp_path: Path) -> None:
    def talk(*sizes: int) -> dict[str, object]:
        return {"conversations": [{"value": "a" * size} for size in sizes]}

    file = tmp_path / "x.json"
    entries = [{}, talk(40), talk(40, 4), talk(5000, 40), talk(4000, 8000), talk(48, 40, 7)]
    file.write_text(json.dumps(entries))
    assert [(each.prompt_count, each.completion_count) for each in read_sharegpt(file, None)] == [
        (12, 10)
    ]
    with pytest.raises(ConfigError, match="has no conversation"):
        read_sharegpt(file, 5000)


def test_a_file_that_is_no_list_or_not_there_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text("{}")
    with pytest.raises(ConfigError, match="is a JSON list"):
        read_sharegpt(file, None)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_sharegpt(tmp_path / "none", None)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_custom(tmp_path / "none", 1, 1)
