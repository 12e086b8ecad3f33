"""Tests of `jitney.server.service`: what it says of itself when its engine does not run."""

import pytest

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.request_factory import RequestFactory
from jitney.server.service import Service
from jitney.server.settings import ServerSettings


@pytest.fixture
def service() -> Service:
    """Over an engine that has stopped."""
    backend = FakeBackend(FakeSettings())
    engine = Engine(backend, SchedulerSettings(model_len_max=100))
    settings = ServerSettings(model_names=("tiny",))
    made = Service(engine, RequestFactory(backend, 100, lambda: 1), None, settings)
    engine.close(0.0)
    return made


def test_a_stopped_engine_is_not_called_a_shutdown(service: Service) -> None:
    """Guards whoever is woken: an engine that gave up is an illness, and a drain is none."""
    assert service.health().status == service.readiness().status == "stopped"
    service.drain()
    assert service.readiness().status == "draining"
