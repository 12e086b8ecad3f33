"""What a benchmark writes: the table, the last line, the file, and the plots. No engine runs."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from jitney.errors import SetupError
from jitney_lab.bench.in_process import EngineRun
from jitney_lab.bench.report import Result
from jitney_lab.bench.stalls import BOUNDED, LARGE, STREAM_COUNT, _figures, _result
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.cli.bench_result import finish

SETUP = {"model": "fake", "settings": {}}


def written(result: Result, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """Give a result out, and check that all places tell the same."""
    finish(result, 3, folder, SETUP)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "\t".join(result.columns)
    found: dict[str, object] = json.loads(lines[-1])
    assert {"machine", "versions", "commit", "at", "load"} <= set(found)
    assert (found["benchmark"], found["seed"], found["model"]) == (result.name, 3, "fake")
    assert json.loads((folder / f"{result.name}.json").read_text()) == found
    if find_spec("matplotlib"):
        assert (folder / f"{result.name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{result.name}.svg").read_text()
    return found


def stalled(stall_s: float, *, first_at: float = 3.0) -> EngineRun:
    """Streams with a token each 0.1 s; the second waits once, for a prompt that comes at 1 s."""
    even = [0.1 * number for number in range(60)]
    streams = [
        RequestTimes(sent_at=0.0, token_times=list(even), ended_at=6.0) for _ in range(STREAM_COUNT)
    ]
    streams[1].token_times = [at if at < 1.5 else at + stall_s for at in even]
    long = RequestTimes(sent_at=1.0, token_times=[first_at], ended_at=first_at)
    return EngineRun([*streams, long], [], 6.0, STREAM_COUNT + 1)


def test_stalls_tells_and_draws_the_stream_with_the_worst_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards the picture: it must show the gap that the table names."""
    ways = {LARGE: [_figures(stalled(0.9))], BOUNDED: [_figures(stalled(0.1, first_at=4.0))]}
    told = {"runs": 1, "backend": "fake", "prompt_count": 4000, "load": {"streams": STREAM_COUNT}}
    found = written(_result(ways, told), tmp_path, capsys)
    kept = found["ways"]
    assert isinstance(kept, dict)
    for name, worst_ms, ttft_s in ((LARGE, 1000.0, 2.0), (BOUNDED, 200.0, 3.0)):
        (run,) = kept[name]
        assert (run["worst_gap_ms"], run["ttft_s"]) == (worst_ms, ttft_s)
        assert max(gap for _, gap in run["gaps_of_one_stream"]) == worst_ms
        # All of them are of one stream: they follow each other.
        ends = [at_s for at_s, _ in run["gaps_of_one_stream"]]
        assert ends == sorted(ends)


def test_streams_that_had_not_begun_are_one_sentence() -> None:
    with pytest.raises(SetupError, match="No stream had begun"):
        _figures(stalled(0.0, first_at=0.0))
