"""Tests of `benchmarks.pictures`: what is collected for a picture, and the page that shows them."""

import inspect
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import pictures
from benchmarks.pictures import (
    POLICIES,
    POLICY_PLACES,
    STRATEGIES,
    STRATEGY_PLACES,
    Life,
    Phase,
    Promises,
    Setup,
    Size,
    Span,
    collect,
    main,
    policy_jobs,
    read_run,
    strategy_jobs,
)
from jitney.config import resolve
from jitney.core.request import Priority, RequestId
from jitney.core.scheduler_settings import Mix, Policy, Strategy
from jitney.records import (
    Member,
    PreemptReason,
    Record,
    RequestAccepted,
    RequestDone,
    RequestPreempted,
    TickRecord,
)

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "strategies.md"
BYTES_MAX = 60_000
FIRST = RequestId("0")
SETUPS = [
    *((setup, strategy_jobs(), STRATEGY_PLACES) for setup in STRATEGIES),
    *((setup, policy_jobs(), POLICY_PLACES) for setup in POLICIES),
]


def accepted(at: float) -> RequestAccepted:
    return RequestAccepted(
        at=at,
        request_id=FIRST,
        prompt_tokens=10,
        arrived_at=at,
        sent_at=at,
        completions=1,
        max_tokens=3,
        priority=Priority.LOW,
        tenant="night",
    )


def tick(at: float, start: int, length: int, *, samples: bool = True) -> TickRecord:
    """A pass of one second with one member."""
    return TickRecord(
        at=at,
        number=1,
        batch_size=1,
        decode_tokens=0,
        prefill_tokens=0,
        active_slots=1,
        queue_depth=0,
        kv_used=0,
        kv_cached=0,
        sampled_tokens=1,
        preempted_count=0,
        forward_ms=1e3,
        decode_ms=0.0,
        tick_ms=1e3,
        members=(Member(FIRST, 0, 0, start, length, samples),),
    )


def done(at: float) -> RequestDone:
    return RequestDone(
        at=at,
        request_id=FIRST,
        prompt_tokens=10,
        generated_tokens=3,
        duration_ms=0.0,
        queue_ms=0.0,
        ttft_ms=0.0,
        prompt_eval_rate=0.0,
        generation_rate=0.0,
        prefix_cache_tokens=0,
        prefix_cache_ratio=0.0,
        preempted_count=1,
        was_cancelled=False,
        stop_reason="length",
    )


def preempted(at: float) -> RequestPreempted:
    reason = PreemptReason.RECOMPUTED
    return RequestPreempted(at=at, request_id=FIRST, index=0, reason=reason, by=RequestId("1"))


def test_a_request_waits_prefills_generates_and_waits_again() -> None:
    """Guards the bars: what is computed again after a preemption is prefill, time between two
    passes is none of waiting, and an answer may come after the last pass."""
    records: list[Record] = [
        accepted(100.0),
        tick(103.0, 0, 6, samples=False),
        tick(104.0, 6, 4),
        tick(105.5, 10, 1),
        preempted(105.5),
        tick(109.0, 0, 12),
        tick(110.0, 12, 1),
        done(112.0),
    ]
    run = read_run(records)
    assert run.lives[FIRST] == Life(
        "night",
        Priority.LOW,
        arrived_at=0.0,
        prompt_count=10,
        spans=[
            Span(Phase.PREFILL, 2.0, 4.0),
            Span(Phase.GENERATE, 4.0, 5.5),
            Span(Phase.PREFILL, 8.0, 9.0),
            Span(Phase.GENERATE, 9.0, 10.0),
        ],
        preempted_at=[5.5],
        answered_at=12.0,
        has_place=True,
    )
    assert run.lives[FIRST].ran_until == 10.0
    assert run.sizes[0] == Size(2.0, 3.0, 1)
    assert run.took_s == 12.0


@pytest.mark.parametrize(("setup", "jobs", "places"), SETUPS, ids=lambda each: _name(each))
def test_what_is_drawn_is_collected_under_everything(
    setup: Setup, jobs: list[pictures.Job], places: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a run of minutes: settings that are refused, a request without a bar, and a warm-up
    that waits for ever or is drawn."""
    monkeypatch.setattr(pictures, "PACE", replace(pictures.PACE, sleeps=False))
    quick = [replace(job, at_s=0.0, completion_count=4) for job in jobs]
    run = collect(setup, quick, places, "fake")
    assert sorted(run.lives, key=int) == [str(number) for number in range(len(jobs))]
    for life in run.lives.values():
        phases = [span.phase for span in life.spans]
        assert (phases[0], phases[-1]) == (Phase.PREFILL, Phase.GENERATE)
        assert len(phases) == 2 or life.preempted_at
        assert life.arrived_at <= life.ran_until <= life.answered_at
    assert 0 < max(size.count for size in run.sizes) <= places
    assert f"{len(jobs)} answers in" in run.words()
    assert len(run.rows()) == len(jobs)


def _name(each: object) -> str:
    return each.name if isinstance(each, Setup) else ""


def test_only_the_policy_with_preemption_displaces() -> None:
    """Guards the comparison of the two pictures: they differ in this setting alone."""
    first, second = (
        resolve(setup.settings, None, {}, given_as="argument").settings for setup in POLICIES[1:3]
    )
    assert (first.enable_preemption, second.enable_preemption) == (True, False)
    assert replace(first, enable_preemption=False) == second


def test_every_strategy_and_policy_has_a_picture() -> None:
    """Guards the page against one that is added and not shown."""
    strategies = {setup.settings["strategy"] for setup in STRATEGIES}
    policies = {setup.settings["policy"] for setup in POLICIES}
    assert strategies == set(Strategy)
    assert policies > set(Policy)


def test_without_matplotlib_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Guards whoever starts it: one sentence, before a model is loaded, and no traceback."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as ended:
        main(["--folder", str(tmp_path / "none")])
    assert str(ended.value).startswith("This draws with matplotlib, which is not installed")
    assert not (tmp_path / "none").exists()


def test_the_page_shows_every_picture() -> None:
    """Guards the page: each picture is there, is shown with its settings, and is small."""
    text = PAGE.read_text(encoding="utf-8")
    for setup in (*STRATEGIES, *POLICIES):
        assert f"](images/{setup.name}.png)" in text, setup.name
        assert (ROOT / "docs" / "images" / f"{setup.name}.png").stat().st_size < BYTES_MAX
    for word in (*Strategy, *Policy, *Mix):
        assert f"`{word}`" in text, word
    assert inspect.getsource(Promises.__init__) in text, "the policy that is shown is the one drawn"
