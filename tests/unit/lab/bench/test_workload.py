"""Workloads are seeded, and traces are read or refused with the line."""

import itertools
import math
import statistics
from pathlib import Path

import pytest

from jitney.errors import ConfigError
from jitney_lab.bench import workload
from jitney_lab.bench.workload import (
    WORDS,
    Job,
    arrival_times,
    equal,
    mixed,
    random_lengths,
    read_trace,
    twenty_clients,
)

TIMELESS = '{"input_length": 5, "output_length": 2}\n'
TIMED = '{"input_length": 5, "output_length": 2, "timestamp": 1000}\n'


def trace(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    """A file with these lines."""
    path = folder / "day.jsonl"
    path.write_text(text, encoding=encoding)
    return path


def test_the_same_seed_gives_the_same_workload() -> None:
    assert mixed(20, seed=3, per_s=5.0) == mixed(20, seed=3, per_s=5.0)
    assert mixed(20, seed=3, per_s=5.0) != mixed(20, seed=4, per_s=5.0)


def test_prompts_come_from_the_seed_and_the_number() -> None:
    first = Job(number=1, prompt_count=12, completion_count=1)
    second = Job(number=2, prompt_count=12, completion_count=1)
    vocabulary = range(100, 1000)
    assert len(first.tokens(7, vocabulary)) == 12
    assert first.tokens(7, vocabulary) == first.tokens(7, vocabulary)
    assert first.tokens(7, vocabulary) != first.tokens(8, vocabulary)
    assert first.tokens(7, vocabulary) != second.tokens(7, vocabulary)
    assert set(first.tokens(7, vocabulary)) <= set(vocabulary)


def test_jobs_share_their_prefix_and_nothing_else() -> None:
    jobs = [Job(number=n, prompt_count=12, completion_count=1, prefix_count=8) for n in (1, 2)]
    one, two = (job.tokens(7, range(100, 1000)) for job in jobs)
    assert one[:8] == two[:8]
    assert one[8:] != two[8:]


def test_text_has_one_word_for_each_token() -> None:
    words = Job(number=1, prompt_count=9, completion_count=1).text(0).split(" ")
    assert len(words) == 9
    assert set(words) <= set(WORDS)


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_arrivals_have_their_rate_and_burstiness(burstiness: float) -> None:
    times = arrival_times(20_001, 10.0, burstiness=burstiness, seed=1)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert times[0] == 0.0
    assert statistics.fmean(gaps) == pytest.approx(0.1, rel=0.05)
    # A gamma distribution of shape k has a squared coefficient of variation of 1 / k.
    variation = statistics.pvariance(gaps) / statistics.fmean(gaps) ** 2
    assert variation == pytest.approx(1 / burstiness, rel=0.1)


def test_an_infinite_rate_is_all_at_once() -> None:
    assert arrival_times(3, math.inf, burstiness=1.0, seed=1) == [0.0, 0.0, 0.0]


def test_a_faster_workload_has_the_same_jobs_closer_together() -> None:
    slow = mixed(5, seed=1, per_s=1.0)
    fast = slow.scaled(2.0)
    assert [job.at_s for job in fast.jobs] == [job.at_s / 2 for job in slow.jobs]
    assert [job.prompt_count for job in fast.jobs] == [job.prompt_count for job in slow.jobs]


def test_shapes_of_the_known_workloads() -> None:
    control = equal(8, seed=0)
    assert {(j.at_s, j.prompt_count, j.completion_count) for j in control.jobs} == {(0, 32, 32)}
    # With clients that ask again, a group would wait for the slowest of them.
    assert control.clients is None
    assert control.token_count == 8 * 64
    twenty = twenty_clients(seed=0)
    assert twenty.clients == 20 == len(twenty.jobs)
    assert all(50 <= job.completion_count <= 200 for job in twenty.jobs)


def test_random_lengths_stay_in_their_range() -> None:
    load = random_lengths(200, 100, 10, range_ratio=0.5, seed=1)
    assert all(50 <= job.prompt_count <= 150 for job in load.jobs)
    assert all(5 <= job.completion_count <= 15 for job in load.jobs)
    assert len({job.prompt_count for job in load.jobs}) > 20


def test_a_trace_is_read_in_the_order_of_its_times(tmp_path: Path) -> None:
    text = (
        '{"timestamp": 3000, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n'
        "\n"
        '{"timestamp": 1000, "input_length": 6, "output_length": 3}\n'
    )
    load = read_trace(trace(tmp_path, text), seed=1)
    assert load.name == "day"
    assert [(job.at_s, job.prompt_count, job.completion_count) for job in load.jobs] == [
        (0.0, 6, 3),
        (2.0, 5, 2),
    ]


@pytest.mark.parametrize(
    ("first", "last", "seconds", "told"),
    [
        (0, 60_000, 60.0, None),
        (1_763_000_000_000, 1_763_000_060_000, 60.0, None),
        (1_763_000_000, 1_763_000_060, 60.0, "seconds since 1970"),
        (1_763_000_000_000_000, 1_763_000_060_000_000, 60.0, "microseconds since 1970"),
        (1_763_000_000_000_000_000, 1_763_000_060_000_000_000, 60.0, "nanoseconds since 1970"),
        (5_000_000, 2_000_000_000, 1_995_000.0, None),
    ],
)
def test_the_times_of_a_clock_count_from_the_first(
    tmp_path: Path, first: int, last: int, seconds: float, told: str | None
) -> None:
    """Seconds read as milliseconds would be a thousand times the load."""
    text = "".join(TIMED.replace("1000", str(at)) for at in (first, last))
    said: list[str] = []
    load = read_trace(trace(tmp_path, text), seed=1, say=said.append)
    assert load.jobs[0].at_s == 0.0
    assert load.jobs[1].at_s == pytest.approx(seconds, rel=1e-4)
    assert [told in each for each in said if told] == ([True] if told else [])
    assert len(said) == (told is not None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no requests"),
        ("\n\n", "has no requests"),
        ("{", "line 1"),
        ('{"input_length": 5}', "output_length"),
        ('{"input_length": 5, "output_length": 2}\n[1]', "line 2"),
        ('{"input_length": 0, "output_length": 2}', "input_length"),
        ('{"input_length": 1.5, "output_length": 2}', "input_length"),
        ('{"input_length": 99999999999, "output_length": 2}', "input_length"),
        ('{"input_length": 5, "output_length": 2, "timestamp": -1}', "timestamp"),
        ('{"input_length": 5, "output_length": "2"}', "output_length"),
        ("\xff\xfe", "line 1"),
        (TIMED + "\n" + TIMELESS, "line 3 has no timestamp"),
        (TIMELESS + TIMED, "line 2 has a timestamp"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_place(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_trace(trace(tmp_path, text, "latin-1"), seed=1)


def test_a_trace_may_begin_with_the_mark_of_some_editors(tmp_path: Path) -> None:
    (job,) = read_trace(trace(tmp_path, TIMELESS, "utf-8-sig"), seed=1).jobs
    assert (job.prompt_count, job.completion_count) == (5, 2)


def test_a_trace_without_times_arrives_at_a_rate(tmp_path: Path) -> None:
    path = trace(tmp_path, TIMELESS * 5)
    drawn = [job.at_s for job in read_trace(path, seed=1, per_s=2.0).jobs]
    assert drawn == arrival_times(5, 2.0, burstiness=1.0, seed=1)
    assert [job.at_s for job in read_trace(path, seed=1).jobs] == [0.0] * 5


def test_a_trace_with_times_takes_no_rate(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--request-rate would not be used"):
        read_trace(trace(tmp_path, TIMED), seed=1, per_s=2.0)


def test_a_trace_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, length = trace(tmp_path, TIMELESS * 3), len(TIMELESS) - 1
    monkeypatch.setattr(workload, "JOBS_MAX", 3)
    assert len(read_trace(path, seed=1).jobs) == 3
    monkeypatch.setattr(workload, "JOBS_MAX", 2)
    with pytest.raises(ConfigError, match="above 2 requests"):
        read_trace(path, seed=1)
    monkeypatch.setattr(workload, "LINE_BYTES_MAX", length)
    with pytest.raises(ConfigError, match=f"line 1 has above {length} bytes"):
        read_trace(path, seed=1)
