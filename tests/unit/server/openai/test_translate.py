"""Tests of `jitney.server.openai.translate`: scopes and priorities."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.config import ServeSettings
from jitney.core.scheduler_settings import Candidate, Policy, SchedulerSettings
from jitney.errors import InvalidRequest
from jitney.server.openai.translate import allowed_priority, cache_scope


@given(st.text(), st.text(), st.text(), st.text())
def test_scopes_are_equal_only_for_equal_pairs(a: str, b: str, c: str, d: str) -> None:
    """Guards tenants: no salt can be chosen that looks like another key's."""
    assert (cache_scope(a, b) == cache_scope(c, d)) == ((a, b) == (c, d))
    assert len(cache_scope(a, b)) <= 64


VLLM = {0: "normal", -1: "high", -2: "critical", -100: "critical", 1: "low", 3: "low", 100: "low"}
LEVELS = {0: "low", 1: "normal", 2: "high", 3: "critical"}


def class_of(value: str | int | None, policy: object, numbers: str | None) -> str:
    """The class that a server with these settings reads."""
    engine = SimpleNamespace(settings=SchedulerSettings(model_len_max=8, policy=policy))  # type: ignore[arg-type]
    settings = ServeSettings(priority_numbers=numbers)  # type: ignore[arg-type]
    service: Any = SimpleNamespace(engine=engine, settings=settings)
    return allowed_priority(service, value, None).name.lower()


class OwnPolicy:
    """The oldest of the highest class."""

    def rank(self, candidate: Candidate) -> float:
        return -candidate.priority

    def __str__(self) -> str:
        return "own"


@pytest.mark.parametrize("policy", [*Policy, OwnPolicy()], ids=str)
@pytest.mark.parametrize("numbers", [None, "vllm", "levels"])
def test_a_name_is_the_same_everywhere(policy: object, numbers: str | None) -> None:
    """Guards names: no setting turns them round."""
    for name in ("low", "normal", "high", "critical", "Critical"):
        assert class_of(name, policy, numbers) == name.lower()
    assert class_of(None, policy, numbers) == "normal"


@pytest.mark.parametrize("policy", [*Policy, OwnPolicy()], ids=str)
def test_numbers_are_those_of_the_setting(policy: object) -> None:
    """Guards the sign: to vLLM the lower number is served first, and levels count up."""
    assert {value: class_of(value, policy, "vllm") for value in VLLM} == VLLM
    assert {value: class_of(value, policy, "levels") for value in LEVELS} == LEVELS
    for value in (-1, 4):
        with pytest.raises(InvalidRequest, match=r"a number from 0 .low. to 3 .critical., and got"):
            class_of(value, policy, "levels")


@pytest.mark.parametrize("policy", [Policy.PRIORITY, OwnPolicy()], ids=str)
def test_a_number_with_two_meanings_is_refused_where_it_counts(policy: object) -> None:
    """Guards whoever sends 3, 2, 1, 0 for critical to low: they were served as 0, 3, 2, 1."""
    for value, level in LEVELS.items():
        sentence = f"priority: {value} is {VLLM.get(value, 'low')} in vLLM.* and {level} among lev"
        with pytest.raises(InvalidRequest, match=sentence):
            class_of(value, policy, None)
    assert [class_of(value, policy, None) for value in (-2, -1, 4)] == ["critical", "high", "low"]


@pytest.mark.parametrize("policy", [Policy.FIFO, Policy.SJF, Policy.FAIR])
def test_a_number_without_an_effect_sends_nobody_away(policy: Policy) -> None:
    """Guards vLLM's clients, which may send 0 with every call."""
    assert {value: class_of(value, policy, None) for value in VLLM} == VLLM
