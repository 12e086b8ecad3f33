"""What a load is summed up to: the server's failures apart from ours."""

from dataclasses import replace

import pytest

from jitney.errors import SetupError
from jitney_lab.bench.http_target import NO_MORE_FILES, HttpTarget
from jitney_lab.bench.report import Result
from jitney_lab.bench.serve_load import result_of
from jitney_lab.bench.timing import RequestTimes

TARGET = HttpTarget(base_url="http://x", endpoint="/v1/completions?key=hidden", model="m", seed=0)
GOOD = RequestTimes(sent_at=1.0, token_times=[2.0, 2.5], completion_count=2, ended_at=3.0)
BAD = RequestTimes(sent_at=1.0, ended_at=1.5, error="ConnectError: refused")
UNSENT = RequestTimes(sent_at=1.0, ended_at=1.0, error=NO_MORE_FILES, is_sent=False)


def summed(*requests: RequestTimes) -> Result:
    return result_of(TARGET, list(requests), 2.0, {})


def test_what_was_not_sent_is_no_failure_of_the_server() -> None:
    """Guards the blame: a limit of this process says nothing about the server."""
    result = summed(GOOD, BAD, UNSENT, UNSENT)
    counts = {name: result.figures[name] for name in ("completed", "failed", "unsent")}
    assert counts == {"completed": 1, "failed": 1, "unsent": 2}
    assert ("Requests that this client could not send", "2") in result.rows
    assert "ulimit -n" in result.notes[0]
    assert summed(GOOD, BAD).figures.keys() == result.figures.keys()
    assert "hidden" not in result.title


def test_a_run_without_an_answer_ends_with_its_reason() -> None:
    with pytest.raises(SetupError, match="this client may open no more files"):
        summed(BAD, UNSENT)


def test_the_names_of_a_result_do_not_depend_on_how_tokens_came() -> None:
    """Guards scripts that read a result: tokens of one chunk have no gaps between them."""
    together = replace(GOOD, token_times=[2.0], completion_count=1)
    found = summed(together).figures
    assert found.keys() == summed(GOOD).figures.keys()
    assert (found["p99_itl_ms"], found["request_goodput"]) == (None, None)
    curves = found["percentile_curves_ms"]
    assert isinstance(curves, dict)
    assert curves["tpot"] is None
