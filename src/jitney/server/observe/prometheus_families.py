"""Families of metrics in prometheus-client's terms, from plain numbers. Any thread; no state.

Tests: tests/unit/server/observe/test_metrics.py.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import Metric

from jitney.server.observe.histograms import Histogram

Labels = dict[str, str]
MetricValues = float | Histogram | Iterable[tuple[Labels, float]]
"""One number, a histogram, or a number for each set of labels."""

MetricTable = dict[str, tuple[str, MetricValues]]
"""Metrics by name: what each is about, and its values."""


def by(label: str, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    """A number for each value of a label."""
    return [({label: name}, value) for name, value in values.items()]


def families(
    kind: str, prefix: str, table: MetricTable, labels: Labels | None = None
) -> Iterator[Metric]:
    """One family for each metric of the table; the kind is gauge, counter or histogram.

    `labels` are those of all samples. A sample of a counter is called `name` with `_total` after
    it.
    """
    for name, (about, values) in table.items():
        family = Metric(f"{prefix}:{name}", about, kind)
        for suffix, own, value in _samples(kind, values):
            family.add_sample(family.name + suffix, {**(labels or {}), **own}, value)
        yield family


def _samples(kind: str, values: MetricValues) -> Iterator[tuple[str, Labels, float]]:
    if isinstance(values, Histogram):
        bounds = [*(repr(float(bound)) for bound in values.bounds), "+Inf"]
        for bound, count in zip(bounds, accumulate(values.counts), strict=True):
            yield "_bucket", {"le": bound}, count
        yield "_count", {}, sum(values.counts)
        yield "_sum", {}, values.total
        return
    suffix = "_total" if kind == "counter" else ""
    for own, value in [({}, values)] if isinstance(values, int | float) else values:
        yield suffix, own, value
