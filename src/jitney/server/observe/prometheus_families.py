"""Families of metrics in prometheus-client's terms, from plain numbers. Any thread; no state.

Tests: tests/unit/server/observe/test_metrics.py.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from jitney.server.observe.histograms import Histogram

Labels = dict[str, str]
Values = float | Iterable[tuple[Labels, float]]
"""One number, or one for each set of labels."""


def by(label: str, values: Mapping[str, float]) -> list[tuple[Labels, float]]:
    """A number for each value of a label."""
    return [({label: name}, value) for name, value in values.items()]


def gauge(name: str, about: str, values: Values, labels: Labels | None = None) -> Metric:
    """A level; `labels` are those of all samples."""
    return _filled(GaugeMetricFamily(name, about), name, values, labels)


def counter(name: str, about: str, values: Values, labels: Labels | None = None) -> Metric:
    """A total; its sample is called `name` with `_total` after it."""
    return _filled(CounterMetricFamily(name, about), f"{name}_total", values, labels)


def histogram(name: str, about: str, values: Histogram, labels: Labels | None = None) -> Metric:
    """Counts up to each bound."""
    labels = labels or {}
    family = HistogramMetricFamily(name, about)
    count = 0
    bounds = [*(f"{float(bound)!r}" for bound in values.bounds), "+Inf"]
    for bound, more in zip(bounds, values.counts, strict=True):
        count += more
        family.add_sample(f"{name}_bucket", {**labels, "le": bound}, count)
    family.add_sample(f"{name}_count", labels, count)
    family.add_sample(f"{name}_sum", labels, values.total)
    return family


def _filled(family: Metric, name: str, values: Values, labels: Labels | None) -> Metric:
    samples = [({}, values)] if isinstance(values, int | float) else values
    for own, value in samples:
        family.add_sample(name, {**(labels or {}), **own}, value)
    return family


Given = TypeVar("Given", Values, Histogram)


def families(
    make: Callable[[str, str, Given, Labels | None], Metric],
    prefix: str,
    table: Mapping[str, tuple[str, Given]],
    labels: Labels | None = None,
) -> list[Metric]:
    """One family for each name: what it is about, and its values."""
    return [make(f"{prefix}:{name}", about, of, labels) for name, (about, of) in table.items()]
