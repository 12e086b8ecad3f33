"""Traffic from lengths, from traces and from recordings."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from jitney.errors import ConfigError
from jitney_lab.bench.workload import Job, Workload
from jitney_lab.plan import traffic
from jitney_lab.plan.traffic import (
    TraceRates,
    Traffic,
    arriving,
    drawn_from,
    rates_of,
    read_recording,
)
from tests.plan_for_tests import at_times, jobs

KINDS = jobs((10, 2), (30, 6))


def row(ts: float, **args: object) -> dict[str, object]:
    args = {"ending": "stop"} | args
    return {"ph": "X", "name": "r", "pid": 2, "tid": 1, "ts": ts, "dur": 5.0, "args": args}


def lines(path: Path, *rows: Mapping[str, float]) -> Path:
    """A trace of requests with these values; their lengths are 5 and 2 unless given."""
    lengths = {"input_length": 5, "output_length": 2}
    path.write_text("".join(json.dumps({**lengths, **row}) + "\n" for row in rows))
    return path


def read(path: Path) -> Workload:
    """The requests of a recording of which none is left out."""

    def refuse(text: str) -> None:
        raise AssertionError(text)

    return read_recording(path, seed=0, say=refuse)


def rates(workload: Workload) -> TraceRates:
    """The rates of requests with times."""
    found = rates_of(workload)
    assert found is not None
    return found


def recording(path: Path, *rows: dict[str, object]) -> Path:
    tick = {"ph": "X", "name": "tick 1", "pid": 1, "ts": 0.0, "args": {"batch_size": 3}}
    name = {"ph": "M", "name": "process_name", "pid": 2, "tid": 0, "args": {"name": "requests"}}
    content = {"displayTimeUnit": "ms", "traceEvents": [name, tick, *rows]}
    path.write_text(json.dumps(content))
    return path


def test_lengths_do_not_depend_on_the_rate() -> None:
    made = Traffic("made", KINDS)
    slow, fast = (made.workload(50, per_s, seed=1) for per_s in (1.0, 10.0))
    assert [each.prompt_count for each in slow.jobs] == [each.prompt_count for each in fast.jobs]
    assert slow.jobs[-1].at_s == pytest.approx(10 * fast.jobs[-1].at_s)
    assert made.workload(50, 1.0, seed=2) != slow


def test_figures_of_the_kinds() -> None:
    made = Traffic("made", KINDS)
    assert made.completion_mean == 4.0
    assert (made.completion_max, made.prompt_max, made.length_max) == (6, 30, 36)


def test_a_recording_gives_arrivals_and_lengths(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "day.json",
        row(3_000_000.0, prompt_tokens=20, completion_tokens=5, cached_tokens=8),
        row(1_000_000.0, prompt_tokens=10, completion_tokens=0, cached_tokens=0),
        row(1_000_000.0),
    )
    found = read(path)
    assert found.name == "day"
    assert found.jobs == (
        Job(number=0, at_s=0.0, prompt_count=10, completion_count=1),
        Job(number=1, at_s=2.0, prompt_count=20, completion_count=5, prefix_count=8),
    )
    assert rates(found).mean_per_s == 1.0


def test_requests_without_a_whole_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    endings = ("stop", "length", "abort", "deadline", "error", None)
    path = recording(
        tmp_path / "day.json",
        *[
            row(1e6 * place, prompt_tokens=10 + place, completion_tokens=5, ending=ending)
            for place, ending in enumerate(endings)
        ],
    )
    said: list[str] = []
    found = read_recording(path, seed=0, say=said.append)
    assert [each.prompt_count for each in found.jobs] == [10, 11]
    (told,) = said
    assert told.startswith("4 of 6 requests of ")


def test_a_trace_without_timestamps_gets_arrivals(tmp_path: Path) -> None:
    found = read(lines(tmp_path / "trace", *({"input_length": 5 + at} for at in range(200))))
    assert rates_of(found) is None
    drawn = arriving(found, 10.0, 1.0)
    assert rates(drawn).mean_per_s == pytest.approx(10.0, rel=0.2)
    assert [each.prompt_count for each in drawn.jobs] == list(range(5, 205))


def test_several_completions_are_several_jobs(tmp_path: Path) -> None:
    path = recording(
        tmp_path / "n.json", row(0.0, prompt_tokens=10, completion_tokens=7, completions=2)
    )
    assert [each.completion_count for each in read(path).jobs] == [4, 4]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"traceEvents": 3}', "is not a trace that jitney trace saved: Expected `array`"),
        ('{"traceEvents": [', "is not a trace that jitney trace saved"),
        ('{"traceEvents": []}', "has no requests with a whole answer"),
        ('{"traceEvents": [{"pid": 2, "args": {"prompt_tokens": -1}}]}', "Expected `int` >= 0"),
        ('{"input_length": 0, "output_length": 1}', "line 1"),
        ("", "has no requests"),
    ],
)
def test_a_wrong_file_gives_one_sentence(tmp_path: Path, content: str, told: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(content)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recording_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "REQUESTS_MAX", 2)
    assert len(read(lines(tmp_path / "short", {}, {})).jobs) == 2
    long = lines(tmp_path / "long", {}, {}, {})
    many = recording(tmp_path / "many.json", *[row(0.0, prompt_tokens=10)] * 3)
    for path in (long, many):
        with pytest.raises(ConfigError, match="above 2 requests; use a part"):
            read(path)
    monkeypatch.setattr(traffic, "BYTES_MAX", 50)
    with pytest.raises(ConfigError, match="above 50 bytes"):
        read(many)


def test_times_beyond_all_reason_are_refused(tmp_path: Path) -> None:
    path = lines(tmp_path / "trace", {"timestamp": 0}, {"timestamp": 1e300})
    with pytest.raises(ConfigError, match="milliseconds"):
        read(path)


def test_a_recording_of_many_days_is_doubted(tmp_path: Path) -> None:
    """Microseconds, read as milliseconds, are a thousand times as long."""
    day_us = 86_400 * 10**6
    path = lines(tmp_path / "trace", {"timestamp": 0}, {"timestamp": day_us})
    said: list[str] = []
    assert read_recording(path, seed=0, say=said.append).jobs[-1].at_s == 86_400_000
    (told,) = said
    assert told.startswith(f"{path} goes over 1,000 days; if it should not")


def test_the_busiest_minute_is_found() -> None:
    """One request a second for ten minutes, and three a second in the middle of the fourth."""
    even = [float(at) for at in range(600)]
    burst = [210 + at / 3 for at in range(60)]
    found = rates(at_times(*sorted(even + burst))).busiest
    assert found is not None
    assert found.per_s == pytest.approx((60 + 60) / 60)
    assert 170 <= found.at_s <= 210
    assert found.span_s == 60.0


def test_few_requests_have_a_longer_busiest_part() -> None:
    """In a minute with one request a minute, two would be twice the mean by chance."""
    found = rates(at_times(*[60.0 * at for at in range(1000)])).busiest
    assert found is not None
    assert found.span_s == pytest.approx(50 * 60, rel=0.01)
    assert found.per_s == pytest.approx(1 / 60, rel=0.05)


def test_a_short_recording_has_no_busiest_part() -> None:
    assert rates(at_times(0.0, 1.0, 2.0)) == TraceRates(
        count=3, span_s=2.0, mean_per_s=1.5, busiest=None
    )


def test_of_a_long_recording_kinds_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "KINDS_MAX", 3)
    long = Traffic("made", KINDS).workload(50, 1.0, seed=0)
    assert len(drawn_from(long, 1.0).kinds) == 3
    assert drawn_from(long, 1.0) == drawn_from(long, 1.0)
    short = Traffic("made", KINDS).workload(2, 1.0, seed=0)
    assert drawn_from(short, 2.0) == Traffic("made", short.jobs, 2.0)


@pytest.mark.parametrize(
    "rows", [[{}, {}], [{"timestamp": 5}, {"timestamp": 5}], [{"timestamp": 5}]]
)
def test_requests_of_one_moment_have_no_rate(tmp_path: Path, rows: list[dict[str, float]]) -> None:
    assert rates_of(read(lines(tmp_path / "made", *rows))) is None


def test_a_mark_at_the_start_of_a_recording_is_read_over(tmp_path: Path) -> None:
    path = recording(tmp_path / "made.json", row(0.0, prompt_tokens=4, completion_tokens=2))
    expected = read(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path) == expected
