"""Finds what stands beside this package: commands, and replicas on a cluster.

`jitney_lab` and `jitney_cluster` name what they offer as entry points, so `jitney` imports neither
of them. Any thread; imports nothing heavy.

Tests: tests/unit/test_extensions.py.
"""

from importlib.metadata import entry_points
from typing import Any  # Any: what an entry point names is of every type

from jitney.errors import ConfigError

COMMANDS = "jitney.commands"
CLUSTER = "jitney.cluster"
LAB_COMMANDS = ("bench", "plan")
"""The commands of `jitney_lab`, for the sentence that says that they are not installed."""


def commands() -> list[Any]:
    """What each package offers as commands, in the order of their names."""
    return [
        each.load() for each in sorted(entry_points(group=COMMANDS), key=lambda each: each.name)
    ]


def load(name: str) -> Any:
    """A part of the cluster by its name. Raises ConfigError if it is not installed."""
    for each in entry_points(group=CLUSTER, name=name):
        return each.load()
    raise ConfigError("Replicas need the package jitney_cluster; install jitney again with it.")
