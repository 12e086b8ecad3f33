"""`jitney.cluster:app`, the name by which Ray's own commands find what `jitney_cluster` serves.

Tests: tests/e2e/cluster/test_serve_app.py.
"""

from typing import Any  # Any: the application of Ray Serve

from jitney.extensions import load


def __getattr__(name: str) -> Any:
    """`app` is made when it is asked for, since Ray is needed for it."""
    if name == "app":
        return load("app")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
