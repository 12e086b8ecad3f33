"""Metrics of files and batches, as families of prometheus-client. Any thread; numbers only.

The numbers are those of the runner's last look at the store, a second ago at most: the store itself
belongs to its thread.

Tests: tests/e2e/batches/test_batches.py.
"""

from collections.abc import Iterator

from prometheus_client.core import Metric

from jitney.server.batches import limits
from jitney.server.batches.batches import Batches
from jitney.server.observe.prometheus_families import by, constants, families


def collect_batches(batches: Batches) -> Iterator[Metric]:
    """All metrics of files and batches."""
    bounds = constants(limits)
    if batches.bounds.bytes_max is not None:
        bounds["disk_bytes_max"] = batches.bounds.bytes_max
    runner, stages = batches.runner, batches.stages
    yield from families(
        "gauge",
        {
            "jobs_batches": ("Batches by state.", by("status", dict(stages.counts))),
            "jobs_lines_pending": ("Lines without a result.", stages.pending_count),
            "jobs_lines_in_flight": ("Lines that are being asked.", runner.in_flight_count),
            "jobs_keys_used_up": (
                "Keys whose batches wait, because their tokens of a day are used up.",
                batches.allowances.used_up_count,
            ),
            "jobs_limit": ("Every bound of files and batches.", by("limit", bounds)),
        },
    )
    done = {"done": runner.done_count, "failed": runner.failed_count}
    yield from families("counter", {"jobs_lines": ("Lines with a result.", by("result", done))})
