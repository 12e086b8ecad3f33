"""Tests of what `benchmarks.cluster` counts: what it would miss, it would not tell."""

import pytest

from benchmarks.cluster import routing
from benchmarks.cluster.streams import (
    Stream,
    asked_case,
    count,
    fake_case,
    known_case,
    longest_gap,
    moved,
    renamed,
)
from benchmarks.http.ledger import Case


def ended(case: Case, **changes: object) -> Stream:
    """A stream that was answered as its case says, but for the changes."""
    stream = Stream(case, status=200, ids={f"cmpl-{case.name}"}, text=case.text, terminals=1)
    stream.finishes = [case.finish]
    told = {"prompt_tokens": case.prompt_count, "completion_tokens": case.completion_count}
    stream.usages = [{**told, "prompt_tokens_details": {"cached_tokens": 0}}]
    for name, value in changes.items():
        setattr(stream, name, value)
    return stream


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"trouble": "reset"}, "complete"),
        ({"terminals": 0}, "complete"),
        ({"terminals": 2}, "complete"),
        ({"finishes": []}, "complete"),
        ({"text": "another"}, "equal"),
        ({"usages": []}, "usage_right"),
        ({"usages": [{"prompt_tokens": 1, "completion_tokens": 1}]}, "usage_right"),
    ],
)
def test_whatever_is_wrong_with_a_stream_is_counted(changes: dict[str, object], name: str) -> None:
    """Guards against a count that is always full."""
    case = fake_case(0, 16, seed=1)
    good = count([ended(case), ended(case)])
    assert {good.complete, good.equal, good.usage_right, good.faultless} == {2}
    bad = count([ended(case), ended(case, **changes)])
    assert getattr(bad, name) == 1
    assert bad.faultless == 1


def test_moved_streams_are_those_that_the_log_names() -> None:
    """Guards the gaps: stream 1 is not stream 11."""
    streams = [ended(fake_case(number, 8, seed=1)) for number in range(12)]
    log = (
        "Request cmpl-stream-11-0a1b2c3d4e5f lost its replica x after 3 tokens: go on\n"
        "Request cmpl-stream-3-0a1b2c3d4e5f ended\n"
    )
    assert [each.case.name for each in moved(streams, log)] == ["stream-11"]


def test_the_longest_gap_counts_from_the_sending() -> None:
    """Guards streams that were moved before their first token."""
    stream = ended(fake_case(0, 8, seed=1), sent_s=1.0, beats=[5.0, 5.5, 7.0])
    assert (stream.gap_s, stream.first_s) == (4.0, 4.0)
    assert longest_gap([]) == 0.0


def test_a_known_answer_is_expected_of_every_later_stream() -> None:
    """Guards the comparison with one process: half an answer is none."""
    asked = asked_case(1, "a", 8)
    first = ended(asked, text="abc", finishes=["length"])
    case = known_case(first)
    assert (case.text, case.finish) == ("abc", "length")
    assert count([ended(renamed(case, "again"))]).faultless == 1
    assert count([ended(case, text="abd")]).equal == 0
    with pytest.raises(RuntimeError, match="reset"):
        known_case(ended(asked, trouble="reset"))


def test_a_failed_request_is_counted_and_not_timed() -> None:
    """Guards the times: a refusal is quick."""
    case = routing.case_of("a", [1] * 100, 4)
    good = ended(case, sent_s=1.0, beats=[1.5])
    good.usages[0]["prompt_tokens_details"] = {"cached_tokens": 90}
    bad = ended(case, trouble="429", sent_s=1.0, beats=[1.001])
    assert routing.found_of([good, bad]) == routing.Found(100, 10, 500.0, 500.0, 1)
    assert routing.found_of([bad]).failed == 1
