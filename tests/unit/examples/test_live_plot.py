"""The example that draws: what it says without matplotlib, and what it collects."""

import sys
from pathlib import Path

import pytest

from examples.live_plot import STRATEGIES, Run, main, make_load, open_engine, run_load
from jitney.core.request import Priority, RequestId
from jitney.records import RequestAccepted, RequestStarted


def test_without_matplotlib_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards whoever tries the example first: one sentence, and no traceback."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit) as ended:
        main(["--backend", "fake", "--png", "never.png"])
    assert str(ended.value).startswith("This draws with matplotlib, which is not installed")
    assert not Path("never.png").exists()


def test_a_seed_is_a_load() -> None:
    """Guards the comparison: every strategy gets the same requests at the same moments."""
    assert make_load(3, 9, 5.0) == make_load(3, 9, 5.0) != make_load(4, 9, 5.0)


def test_who_has_started_is_not_drawn_as_waiting() -> None:
    """Guards the area of those who wait: starts and arrivals during a pass are told when it is
    over, and once a group that departed was drawn as waiting until then."""
    run = Run("static")
    for number, sent_at, at in ((0, 0.0, 0.0), (1, 0.5, 0.5), (2, 1.5, 3.0)):
        if number == 2:
            for started in (0, 1):
                run.observe(
                    RequestStarted(
                        at=1.0,
                        request_id=RequestId(str(started)),
                        prompt_tokens=1,
                        prefix_cache_tokens=0,
                        waited_ms=0.0,
                    )
                )
        run.observe(
            RequestAccepted(
                at=at,
                request_id=RequestId(str(number)),
                prompt_tokens=1,
                arrived_at=sent_at,
                sent_at=sent_at,
                completions=1,
                max_tokens=1,
                priority=Priority.NORMAL,
                tenant="",
            )
        )
    found = [(level.at, level.count) for level in run.levels()]
    assert found == [(0.0, 1), (0.5, 2), (1.0, 1), (1.0, 0), (1.5, 1)]


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_drawn_is_collected_under_every_strategy(name: str) -> None:
    """Guards the picture: all arrivals, all answers, and a queue that ends empty."""
    load, drawn = make_load(1, 8, 200.0), list[int]()
    run = Run(name)
    with open_engine(name, "fake") as engine:
        run_load(run, engine, load, lambda: drawn.append(len(run.ticks)))
        stats = engine.stats()
    assert len(run.done) == len(load) == stats.completed_requests
    assert sum(each.sampled_tokens for each in run.ticks) == sum(each.max_tokens for each in load)
    assert len(run.ticks) == stats.total_batches
    levels = run.levels()
    assert max(each.count for each in levels) > 0
    assert min(each.count for each in levels) == levels[-1].count == 0
    assert [each.at for each in levels] == sorted(each.at for each in levels)
    assert run.began_at <= run.ticks[0].at
    assert drawn, "it is drawn while it runs"
    assert "8 answers in" in run.words()


def test_a_picture_is_written_without_a_display(tmp_path: Path) -> None:
    """Guards the whole way, where matplotlib is installed."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / "all.png"
    main(["--backend", "fake", "--requests", "4", "--rate", "100", "--png", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
