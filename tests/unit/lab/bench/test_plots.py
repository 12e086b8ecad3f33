"""Words in the pictures of results."""

import pytest

plots = pytest.importorskip("jitney_lab.bench.plots", reason="matplotlib is not installed")


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0"), (0.34567, "0.346"), (7.0, "7"), (45.678, "45.7"), (1234.5, "1,234")],
)
def test_a_small_time_has_digits(value: float, shown: str) -> None:
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
