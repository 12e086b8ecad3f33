"""Other settings as the user writes them."""

import json
import math
from dataclasses import replace

import pytest

from jitney.errors import ConfigError
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.plan.figures import Figures, figures_of
from jitney_lab.plan.results import cost_note, replayed
from jitney_lab.plan.what_if import Change, named, read_change
from tests.plan_for_tests import make_cost


def test_settings_and_replicas_are_read() -> None:
    found = read_change("max-num-seqs=32, mix=separate,replicas=3")
    assert dict(found.words) == {"max_num_seqs": "32", "mix": "separate"}
    assert found.replicas == 3
    assert read_change("policy=sjf") == Change("policy=sjf", {"policy": "sjf"})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_num_seqs", "without a value"),
        ("max_num_seqs=", "without a value"),
        ("", "without a value"),
        ("max_num_seq=3", "the nearest is max_num_seqs"),
        ("model=other.gguf", "cannot change model"),
        ("wait_s=1", "cannot change wait_s"),
        ("foo=2", "cannot change foo; these can be changed: .*max_num_seqs, .*replicas, "),
        ("mix=separate,mix=fair", "changes mix twice"),
        ("replicas=0", "expected a number from 1 to"),
        ("replicas=many", "expected a number from 1 to"),
    ],
)
def test_a_wrong_change_gives_one_sentence(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        read_change(text)


def test_a_mistake_in_a_value_names_its_change() -> None:
    told = r"^--what-if mix=fast: mix is wrong\.$"
    with pytest.raises(ConfigError, match=told), named(Change("mix=fast", {"mix": "fast"})):
        raise ConfigError("mix is wrong.")
    with pytest.raises(ConfigError, match=r"^mix is wrong"), named(Change("present", {})):
        raise ConfigError("mix is wrong.")


def figures(p95_ms: float, failed: int = 0) -> Figures:
    return Figures(
        count=10,
        failed=failed,
        per_s=2.0,
        tokens_per_s=20.0,
        share=0.5,
        p50_ms=10.0,
        p95_ms=p95_ms,
        ttft_p50_ms=1.0,
        ttft_p95_ms=2.0,
        tpot_p95_ms=3.0,
        mean_batch=1.0,
    )


def test_a_run_without_time_or_requests_has_figures() -> None:
    refused = RequestTimes(sent_at=0.0, prompt_count=9, error="too long")
    found = figures_of([refused], 0.0, {}, 0.0)
    assert (found.per_s, found.share, found.failed) == (0.0, 0.0, 1)
    assert figures_of([], 0.0, {}, 0.0).share == 0.0


def test_what_no_request_has_is_null_in_json_and_a_dash_in_tables() -> None:
    rows = [("present", 1, figures(math.nan)), ("mix=separate", 1, figures(math.inf))]
    result = replayed(make_cost(), "day", {}, rows)
    assert [row[5] for row in result.rows] == ["-", "-"]
    read = json.loads(json.dumps(result.figures, allow_nan=False))
    assert [run["p95_ms"] for run in read["runs"]] == [None, None]


@pytest.mark.parametrize(
    ("error", "stolen_share", "told"),
    [
        (0.2, None, "measure again on a quiet machine."),
        (0.2, 0.3, "took 30 % of the processors while it was measured"),
        (0.02, 0.3, "measure again at another time."),
    ],
)
def test_a_poor_cost_is_doubted(error: float, stolen_share: float | None, told: str) -> None:
    assert told in cost_note(make_cost(error=error, stolen_share=stolen_share))


def test_a_good_cost_is_not_doubted() -> None:
    for stolen_share in (None, 0.0, 0.02):
        assert "measure again" not in cost_note(make_cost(error=0.1, stolen_share=stolen_share))


def test_changes_stand_side_by_side() -> None:
    rows = [("present", 1, figures(100.0)), ("mix=separate", 2, figures(80.0))]
    result = replayed(make_cost(), "day", {}, rows)
    assert result.rows[0][5] == "100"
    assert result.rows[1][5] == "80 (-20 %)"
    assert result.rows[1][:2] == ("mix=separate", "2")


def test_a_row_in_which_all_failed_has_dashes() -> None:
    rows = [("present", 1, figures(100.0)), ("kv_tokens=10", 1, figures(math.nan, failed=10))]
    assert replayed(make_cost(), "day", {}, rows).rows[1][5] == "-"


def test_refused_requests_are_said_of_all_settings() -> None:
    told = replace(figures(100.0, failed=4), failure="The queue is full.")
    rows = [("present", 1, told), ("kv_tokens=10", 1, figures(math.nan, failed=10))]
    notes = replayed(make_cost(), "day", {}, rows).notes
    assert (
        "4 of 10 requests were refused or failed under present, for example: The queue is full."
        in notes
    )
    assert "All 10 requests were refused or failed under kv_tokens=10." in notes


def test_the_most_common_failure_is_kept() -> None:
    errors = ("full", "too long", "too long", None)
    requests = [RequestTimes(sent_at=0.0, prompt_count=9, error=error) for error in errors]
    found = figures_of(requests[:3], 1.0, {}, 0.0)
    assert (found.failed, found.failure) == (3, "too long")


def test_settings_that_bear_less_than_what_arrives_are_named() -> None:
    rows = [("present", 1, figures(100.0)), ("replicas=2", 2, figures(80.0))]
    result = replayed(make_cost(), "day", {}, rows, ["replicas=2"])
    assert any(
        each.startswith("More arrives than the replicas bear under these settings: replicas=2. ")
        for each in result.notes
    )
    runs = result.figures["runs"]
    assert isinstance(runs, list)
    assert [each["overloaded"] for each in runs] == [False, True]
    calm = replayed(make_cost(), "day", {}, rows)
    assert not any(each.startswith("More arrives") for each in calm.notes)
