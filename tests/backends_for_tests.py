"""Whether a backend can run here, asked of jitney itself, and the skip where it cannot.

A backend is tried once in a run, in a cache folder that all workers of the run share: what an
earlier state of the source found does not count. A reason that is no fact about the machine fails
`tests/conformance/test_usable.py`, so that no mistake of ours hides behind a skip.
"""

import functools
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any  # Any: settings of every kind

import pytest

from jitney.backends.kinds import all_kinds, kind_of
from jitney.config import Settings
from jitney.core.backend import Backend, QueueingBackend
from jitney.core.batch import Batch
from jitney.loading import backend_failure

WRONG = "it computes wrongly on this processor"
"""The one reason that skips nothing: such a backend runs, and its tests are there to show it."""


@functools.cache
def session_cache() -> Path:
    """The cache folder in which this run's trials are remembered; `tests/conftest.py` makes it."""
    return Path(os.environ["PYTEST_JITNEY_CACHE"])


def failure(name: str, **given: Any) -> str | None:
    """Why the backend cannot run here with these settings, as a clause; None when it can."""
    return backend_failure(name, Settings(cache_dir=session_cache(), **given))


def skip_reason(name: str, **given: Any) -> str | None:
    """What a skip says where the backend cannot run with these settings; None where it can.

    For the head of a module, whose imports may need the backend's libraries:
    `if reason := skip_reason("llamacpp"): pytest.skip(reason, allow_module_level=True)`.
    """
    found = failure(name, **given)
    return None if found in (None, WRONG) else f"the {name} backend does not work here: {found}"


def needs(name: str, **given: Any) -> None:
    """Skip the test, the fixture or the module where the backend cannot run with these settings."""
    if reason := skip_reason(name, **given):
        pytest.skip(reason, allow_module_level=True)


def absence_reason(name: str) -> str | None:
    """What a skip says where the backend's libraries are not installed; nothing is tried."""
    kind = kind_of(name)
    if kind.library() is not None:
        return None
    return f"the {name} backend is not installed: {kind.advice}"


def needs_installed(name: str) -> None:
    """Skip where the backend's libraries are not there; whether they can run a model is open."""
    if reason := absence_reason(name):
        pytest.skip(reason, allow_module_level=True)


def share_verdicts(cache: Path) -> Path:
    """Let a fresh cache folder know what was found for the usual settings; the folder again.

    A test that is not about the trial need not wait for one.
    """
    for kind in all_kinds():
        failure(kind.name)
    probes = session_cache() / "probes"
    if probes.is_dir():
        shutil.copytree(probes, cache / "probes", dirs_exist_ok=True)
    return cache


def before_batch(backend: Backend, number: int, act: Callable[[], None]) -> None:
    """Have something done just before the backend gets its so manyth batch from now on."""
    name = "send" if isinstance(backend, QueueingBackend) else "execute"
    usual, numbers = getattr(backend, name), itertools.count(1)

    def call(batch: Batch) -> object:
        if next(numbers) == number:
            act()
        return usual(batch)

    setattr(backend, name, call)
