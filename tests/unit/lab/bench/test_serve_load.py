"""What a load is summed up to: the server's failures apart from ours."""

import pytest

from jitney.errors import SetupError
from jitney_lab.bench.http_target import NO_MORE_FILES, HttpTarget
from jitney_lab.bench.report import Result
from jitney_lab.bench.serve_load import Reporting, _result, details
from jitney_lab.bench.timing import RequestTimes

TARGET = HttpTarget(base_url="http://x", endpoint="/v1/completions?key=hidden", model="m", seed=0)
GOOD = RequestTimes(sent_at=1.0, token_times=[2.0, 2.5], completion_count=2, ended_at=3.0)
BAD = RequestTimes(sent_at=1.0, ended_at=1.5, error="ConnectError: refused")
UNSENT = RequestTimes(sent_at=1.0, ended_at=1.0, error=NO_MORE_FILES, is_sent=False)


def summed(*requests: RequestTimes) -> Result:
    return _result(TARGET, list(requests), 2.0, Reporting())


def test_what_was_not_sent_is_no_failure_of_the_server() -> None:
    """Guards the blame: a limit of this process says nothing about the server."""
    result = summed(GOOD, BAD, UNSENT, UNSENT)
    counts = {name: result.figures[name] for name in ("completed", "failed", "unsent")}
    assert counts == {"completed": 1, "failed": 1, "unsent": 2}
    assert ("Requests that this client could not send", "2") in result.rows
    assert "ulimit -n" in result.notes[0]
    assert "unsent" not in summed(GOOD, BAD).figures
    assert "hidden" not in result.title


def test_a_run_without_an_answer_ends_with_its_reason() -> None:
    with pytest.raises(SetupError, match="this client may open no more files"):
        summed(BAD, UNSENT)


def test_details_have_a_place_for_each_request() -> None:
    found = details([GOOD, BAD])
    assert found["ttfts"] == [1.0, 0.0]
    assert found["itls"] == [[0.5], []]
    assert found["errors"] == ["", "ConnectError: refused"]
