"""Tests of `jitney.server.service`: what it says of itself when its engine does not run, and the
largest body that a model has use for."""

import pytest

from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.config import ServeSettings
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.engine import Engine
from jitney.engine.request_factory import RequestFactory
from jitney.server.limits import BODY_BYTES_MIN
from jitney.server.service import Service, body_limit_for


@pytest.fixture
def service() -> Service:
    """Over an engine that has stopped."""
    return made_over(FakeBackend(FakeSettings()))


def made_over(backend: FakeBackend) -> Service:
    engine = Engine(backend, SchedulerSettings(model_len_max=100))
    settings = ServeSettings(served_model_name=("tiny",))
    made = Service(engine, RequestFactory(backend, 100, lambda: 1), None, settings)
    engine.close(0.0)
    return made


def test_a_stopped_engine_is_not_called_a_shutdown(service: Service) -> None:
    """Guards whoever is woken: an engine that gave up is an illness, and a drain is none."""
    assert service.health().status == service.readiness().status == "stopped"
    service.drain()
    assert service.readiness().status == "draining"


def test_another_file_under_one_name_is_another_model() -> None:
    """Guards answers that go on after a restart: sizes of one family have the same tokens."""
    one, again, other = (made_over(FakeBackend(FakeSettings())) for _ in range(3))
    other.own_name = "tiny-4b"
    assert one.own_models == again.own_models
    assert not set(one.own_models) & set(other.own_models)


@pytest.mark.parametrize(
    ("model_len_max", "expected"),
    [(1, BODY_BYTES_MIN), (65_536, BODY_BYTES_MIN), (131_072, 4_194_304), (1_048_576, 33_554_432)],
)
def test_the_largest_body_follows_from_the_length_of_the_model(
    model_len_max: int, expected: int
) -> None:
    """Guards the interpreter against bodies that no model here can use, and long prompts."""
    assert body_limit_for(model_len_max) == expected
