"""Tests of the arithmetic of `benchmarks.http`: what it counts is what it says."""

from pathlib import Path

import pytest

from benchmarks.http.arrivals import Answer, answer_status
from benchmarks.http.kills_exact import Outage, miscounted, outages
from benchmarks.http.ledger import Account, make_cases
from benchmarks.http.overload import goodput
from benchmarks.http.soak import slope_per_minute
from benchmarks.http.tenants import auc, auc_error

ROOT = Path(__file__).parents[3]
STREAM = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
REFUSED = b"HTTP/1.1 429 X\r\nRetry-After: 3\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("received", "told"),
    [
        (b"HTTP/1.1 429 X\r\nRetry", None),
        (REFUSED + b"{", None),
        (REFUSED + b"{}", (429, True, False)),
        (STREAM + b"5\r\ndata:\r\n", None),
        (STREAM + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n", (200, False, True)),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", (200, False, True)),
    ],
)
def test_an_answer_counts_when_it_is_whole(
    received: bytes, told: tuple[int, bool, bool] | None
) -> None:
    """Guards the ledger of the overload: half an answer is none."""
    assert answer_status(received) == told


def test_goodput_is_what_was_answered_well_and_in_time() -> None:
    """Guards the goal against refusals, late answers and those of another time."""
    answers = [
        Answer(1.0, 2.0, 200, False),
        Answer(1.0, 1.1, 429, True),
        Answer(1.0, 90.0, 200, False),
        Answer(1.0, 11.5, 200, False),
        Answer(1.0, 3.0, None, False),
    ]
    assert goodput(answers, 1.5, 11.5) == pytest.approx(0.2)


def test_kills_before_anything_came_again_are_one_outage() -> None:
    """Guards the time until the service is back: from the first of them, and not from the last."""
    assert outages([10.0, 11.0, 20.0], [9.0, 10.05, 12.0, 20.5]) == [Outage(2.0, 2), Outage(0.5, 1)]
    assert outages([10.0], [9.0]) == []


def test_the_ledger_and_the_counters_are_compared_by_name() -> None:
    """Guards the accounting under kills: a request that ended twice is seen."""
    accounts = [Account(case) for case in make_cases(3, seed=5)]
    finishes = [each.case.finish for each in accounts]
    told = {
        "jitney:requests_accepted_total": 3.0,
        'jitney:requests_ended_total{reason="stop"}': float(finishes.count("stop")),
        'jitney:requests_ended_total{reason="length"}': float(finishes.count("length")),
        'jitney:requests_ended_total{reason="abort"}': 0.0,
        'jitney:requests_ended_total{reason="error"}': 0.0,
        "jitney:prompt_tokens_total": float(sum(each.case.prompt_count for each in accounts)),
        "jitney:completion_tokens_total": float(
            sum(each.case.completion_count for each in accounts)
        ),
        "jitney:requests_running": 0.0,
        "jitney:requests_waiting": 0.0,
    }
    assert not miscounted(accounts, told)
    told["jitney:requests_accepted_total"] = 4.0
    assert miscounted(accounts, told) == {"jitney:requests_accepted_total": 4.0}


def test_the_area_is_one_half_where_nothing_is_told() -> None:
    """Guards the statistic: certainty, a coin, and the other way round."""
    assert auc([3.0, 4.0], [1.0, 2.0]) == 1.0
    assert auc([1.0, 1.0], [1.0, 1.0]) == 0.5
    assert auc([1.0], [2.0, 3.0]) == 0.0
    assert auc([1.0, 3.0], [2.0, 2.0]) == 0.5
    assert auc_error(0.5, 1000, 1000) == pytest.approx(0.0129, abs=1e-3)


def test_a_slope_is_in_minutes() -> None:
    """Guards the goal of the soak: one MiB every thirty seconds is two a minute."""
    assert slope_per_minute([(0.0, 5.0), (30.0, 6.0), (60.0, 7.0)]) == pytest.approx(2.0)
    assert slope_per_minute([(0.0, 5.0)]) == 0.0
