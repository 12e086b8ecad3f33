"""Options that are refused: each pair that would leave one of the two without use."""

from pathlib import Path

import pytest

from jitney.config import resolve
from jitney.errors import ConfigError
from jitney_lab.cli.plan_checks import check_numbers, check_unused_settings, check_used
from jitney_lab.cli.plan_verb import PlanOptions

TRACE = Path("monday.jsonl")
CHANGES = ("mix=separate",)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (PlanOptions(day=True, what_if=CHANGES), "--day would not be used with --what-if"),
        (PlanOptions(replicas=1), "--replicas would not be used without --day or --what-if"),
        (PlanOptions(day_peak=1.5), "--day-peak would not be used without --day"),
        (PlanOptions(trace=TRACE, input_len=5), "--input-len would not be used with --trace"),
        (PlanOptions(trace=TRACE, output_len=5), "--output-len would not be used with --trace"),
        (PlanOptions(trace=TRACE, range_ratio=0.0), "--random-range-ratio would not be used with"),
        (PlanOptions(range_ratio=0.5), "--random-range-ratio would not be used without --input"),
        (PlanOptions(day=True, share=0.9), "--share would not be used with --day or --what-if"),
        (PlanOptions(what_if=CHANGES, share=0.9), "--share would not be used with --day or"),
        (PlanOptions(cost=TRACE, save_cost=TRACE), "--save-cost would not be used with --cost"),
    ],
)
def test_an_option_without_use_is_refused(options: PlanOptions, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_used(options)
    assert str(caught.value).startswith(told)
    assert str(caught.value).endswith(".")


def test_burstiness_is_refused_where_a_trace_is_replayed() -> None:
    """Elsewhere the arrivals are drawn, also those of a trace with times."""
    replayed = PlanOptions(trace=TRACE, what_if=CHANGES, burstiness=2.0)
    with pytest.raises(ConfigError, match=r"^--burstiness would not be used with --what-if and"):
        check_used(replayed, is_timed=True)
    check_used(replayed)
    check_used(PlanOptions(trace=TRACE, burstiness=2.0), is_timed=True)
    check_used(PlanOptions(trace=TRACE, day=True, burstiness=2.0), is_timed=True)


@pytest.mark.parametrize(
    "options",
    [
        PlanOptions(),
        PlanOptions(request_rate=3.0, input_len=5, range_ratio=0.5, burstiness=2.0, share=0.9),
        PlanOptions(trace=TRACE, day=True, day_peak=1.2, replicas=9, request_rate=3.0),
        PlanOptions(trace=TRACE, what_if=CHANGES, replicas=9, goodput=("ttft:5",), cost=TRACE),
    ],
)
def test_what_is_used_is_taken(options: PlanOptions) -> None:
    check_numbers(options)
    check_used(options, is_timed=True)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"model": "x.gguf"}, "--model would not be used with --cost"),
        ({"threads": "2"}, "--threads would not be used with --cost"),
        ({"backend_process": True}, "--backend-process would not be used with --cost"),
    ],
)
def test_a_setting_of_the_measurement_is_refused_beside_a_cost(
    flags: dict[str, object], told: str
) -> None:
    resolved = resolve(flags, None, {})
    check_unused_settings(PlanOptions(), resolved)
    with pytest.raises(ConfigError) as caught:
        check_unused_settings(PlanOptions(cost=Path("cost.json")), resolved)
    assert str(caught.value).startswith(told)


def test_a_setting_from_elsewhere_is_named_beside_a_cost(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A file and the environment may be there for jitney serve."""
    options = PlanOptions(cost=Path("cost.json"))
    resolved = resolve({"max_num_seqs": "4"}, None, {"JITNEY_THREADS": "2", "JITNEY_SEED": "3"})
    check_unused_settings(options, resolved)
    sentence = "Not used, because the cost of ticks comes from cost.json: threads (environment "
    assert capsys.readouterr().err == f"jitney: {sentence}JITNEY_THREADS).\n"
    check_unused_settings(options, resolve({"kv_tokens": "400"}, None, {}))
    check_unused_settings(options, resolve({}, None, {"JITNEY_CACHE_DIR": "/x"}))
    assert capsys.readouterr().err == ""
