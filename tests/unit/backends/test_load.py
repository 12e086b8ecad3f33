"""Backends by name."""

import sys
from collections.abc import Callable

import pytest

import jitney.backends.llamacpp
from jitney.backends.kinds import kind_of, load, load_process
from jitney.backends.llamacpp import library
from jitney.errors import ConfigError, MissingDependency


@pytest.mark.parametrize("build", [load, load_process])
def test_an_unknown_backend_is_refused_by_name(build: Callable[..., object]) -> None:
    """Guards against a typing mistake that is answered with a traceback."""
    with pytest.raises(ConfigError, match="lamacpp"):
        build("lamacpp", {})


@pytest.mark.parametrize("build", [load, load_process])
def test_an_unknown_setting_is_refused_by_name(build: Callable[..., object]) -> None:
    """Guards against a setting that is taken and ignored."""
    with pytest.raises(ConfigError, match="slot_count"):
        build("fake", {"slot_count": 4})


@pytest.mark.parametrize("build", [load, load_process])
def test_an_impossible_setting_is_refused(build: Callable[..., object]) -> None:
    """Guards against a set-up error that turns into a crash on its way out of the process."""
    with pytest.raises(ConfigError, match="slots must be at least 1"):
        build("fake", {"slots": 0})


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an import error that does not say what to install."""
    # Its modules are loaded anew, and the ones that others hold come back afterwards.
    monkeypatch.setattr(jitney.backends, "llamacpp", jitney.backends.llamacpp)
    for name in [name for name in sys.modules if name.startswith("jitney.backends.llamacpp")]:
        monkeypatch.delitem(sys.modules, name)
    for name in library.PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency) as caught:
        load("llamacpp", {"model": "any.gguf"})
    told = str(caught.value)
    assert told.startswith("the llamacpp backend needs llama.cpp, which is not installed: ")
    assert kind_of("llamacpp").advice in told
    for way in ("`make llama`", "extra `llama`"):
        assert way in told
