"""The example that draws: what it says without matplotlib, and what it collects."""

import sys
from pathlib import Path

import pytest

from examples.live_plot import STRATEGIES, Run, main, make_load, open_engine, run_load


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
    assert max(each.count for each in run.queue) > 0
    assert run.queue[-1].count == 0
    assert [each.at for each in run.queue] == sorted(each.at for each in run.queue)
    assert run.began_at <= run.ticks[0].at
    assert drawn, "it is drawn while it runs"
    assert "8 answers in" in run.words()


def test_a_picture_is_written_without_a_display(tmp_path: Path) -> None:
    """Guards the whole way, where matplotlib is installed."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / "all.png"
    main(["--backend", "fake", "--requests", "4", "--rate", "100", "--png", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
