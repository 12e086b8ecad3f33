"""`jitney pull`: fetch the embedded model and make it ready. Main thread."""

from pathlib import Path

from jitney.cli.flags import Given, resolved
from jitney.cli.verbs import PullOptions


def call(options: PullOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    fetch_embedded(resolved(given).settings.cache_dir, announces=False)
    return 0


def fetch_embedded(cache: Path, *, announces: bool) -> Path:
    return cache
