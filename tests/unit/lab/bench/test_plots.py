"""Words in the pictures of results."""

from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    """No import at the head: each worker reads all heads, and few run this file."""
    found: ModuleType = pytest.importorskip(
        "jitney_lab.bench.plots", reason="matplotlib is not installed"
    )
    return found


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.34567, "0.346"), (7.0, "7"), (45.678, "45.7"), (1234.5, "1,234")],
)
def test_a_small_time_has_digits(plots: ModuleType, value: float, shown: str) -> None:
    """Guards the picture of a fast server: its times per token were all 0 ms."""
    content = {
        "benchmark": "serve",
        "model_id": "m",
        "completed": 1,
        "request_throughput": 1.0,
        "percentile_curves_ms": {"tpot": [value] * 101},
    }
    (axes,) = plots.PAINTERS["serve"](content).axes
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert words == [f"p{share}: {shown} ms" for share in (50, 95, 99)]


@pytest.mark.parametrize("sizes", [("1", "2"), ("2", "4")])
def test_claimed_rates_are_drawn_only_beside_the_rate_of_one(
    plots: ModuleType, sizes: tuple[str, str]
) -> None:
    content = {
        "machine": {"processor": "made", "cores": 2},
        "tick_s": {size: [0.1] for size in sizes},
        "fit": {"fixed_s": 0.05, "sequence_s": 0.025},
        "tokens_per_s": dict.fromkeys(sizes, 10.0),
        "claimed": {"1": 1.0, "2": 1.8} if "1" in sizes else {},
    }
    rates, _ = plots.PAINTERS["scaling"](content).axes
    words = [text.get_text() for text in rates.get_legend().get_texts()]
    assert ("claimed once" in words) is ("1" in sizes)
    dotted = [line.get_ydata()[0] for line in rates.lines if line.get_linestyle() == ":"]
    assert dotted == [pytest.approx(1 / 0.075), pytest.approx(40.0)]
    assert {"1 / (C + c) = 13", "1 / c = 40"} <= set(words)
