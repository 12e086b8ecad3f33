"""Families of metrics in prometheus-client's terms, from plain numbers. Any thread; no state."""

from collections.abc import Iterable

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from jitney.server.observe.measures import Histogram

Labels = dict[str, str]


def gauge(name: str, about: str, value: float, labels: Labels | None = None) -> Metric:
    """A level."""
    return labelled_gauge(name, about, [(labels or {}, value)])


def labelled_gauge(name: str, about: str, values: Iterable[tuple[Labels, float]]) -> Metric:
    """A level for each set of labels."""
    family = GaugeMetricFamily(name, about)
    for labels, value in values:
        family.add_sample(name, labels, value)
    return family


def counter(name: str, about: str, value: float, labels: Labels | None = None) -> Metric:
    """A total; its sample is called `name` with `_total` after it."""
    return labelled_counter(name, about, [(labels or {}, value)])


def labelled_counter(name: str, about: str, values: Iterable[tuple[Labels, float]]) -> Metric:
    """A total for each set of labels."""
    family = CounterMetricFamily(name, about)
    for labels, value in values:
        family.add_sample(f"{name}_total", labels, value)
    return family


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
