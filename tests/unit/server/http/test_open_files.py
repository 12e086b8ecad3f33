"""How many files, and so connections, are allowed: what the system refuses is not insisted on."""

import logging
import resource

import pytest

from jitney.server import limits
from jitney.server.http.open_files import allow_files, connections_max

WANTED = limits.CONNECTIONS_MAX + limits.FILES_KEPT


class Limits:
    """The limit on open files of a system that tells of no bound and has one."""

    def __init__(self, soft: int, bound: int) -> None:
        self.soft = soft
        self._bound = bound

    def getrlimit(self, kind: int) -> tuple[int, int]:
        assert kind == resource.RLIMIT_NOFILE
        return self.soft, resource.RLIM_INFINITY

    def setrlimit(self, kind: int, wanted: tuple[int, int]) -> None:
        assert kind == resource.RLIMIT_NOFILE
        if wanted[0] > self._bound:
            raise ValueError("current limit exceeds maximum limit")
        self.soft = wanted[0]


def placed(monkeypatch: pytest.MonkeyPatch, system: Limits) -> Limits:
    """Have the system answer so."""
    monkeypatch.setattr(resource, "getrlimit", system.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", system.setrlimit)
    return system


@pytest.mark.parametrize(
    ("bound", "soft"),
    [(1 << 20, WANTED), (5000, WANTED // 2), (256, 256), (1, 256)],
    ids=["none", "lower", "as it is", "below what is"],
)
def test_a_bound_that_is_not_told_is_found(
    monkeypatch: pytest.MonkeyPatch, bound: int, soft: int
) -> None:
    """Guards macOS, which begins with 256, tells of no bound, and refuses what is above it."""
    system = placed(monkeypatch, Limits(256, bound))
    allow_files()
    assert system.soft == soft


def test_fewer_connections_than_wanted_are_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the operator: the limit is in force, so it is said."""
    placed(monkeypatch, Limits(256, 256))
    with caplog.at_level(logging.WARNING):
        allow_files()
    assert f"At most {connections_max()} connections at once" in caplog.text
    assert connections_max() == 128


def test_no_limit_at_all_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards systems whose limit is infinite: the number for that is no count."""
    system = placed(monkeypatch, Limits(resource.RLIM_INFINITY, 0))
    allow_files()
    assert system.soft == resource.RLIM_INFINITY
    assert connections_max() == limits.CONNECTIONS_MAX
