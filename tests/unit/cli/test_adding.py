"""Tests of `jitney.cli.adding`: a missing backend is added after a yes, and never unasked."""

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from jitney.backends.llamacpp import kind as llamacpp
from jitney.cli.adding import add_backend, add_if_missing
from jitney.cli.opening import loading
from jitney.config import Settings
from jitney.errors import ConfigError, MissingDependency, SetupError
from tests.children_for_tests import MODULES, install, refuses, stand_in


class Stream(io.StringIO):
    """A stream that says whether it is a terminal."""

    def __init__(self, text: str, *, is_terminal: bool) -> None:
        super().__init__(text)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The GPUs for which llama.cpp was added, on a machine on which OpenVINO does not work."""
    found: list[str] = []

    def add(_cache: Path, gpu: str) -> str:
        found.append(gpu)
        return "0.9.0"

    install(monkeypatch, missing=MODULES["llamacpp"])
    stand_in(tmp_path, monkeypatch, openvino=refuses("it has no attention"))
    monkeypatch.setattr(llamacpp, "KIND", replace(llamacpp.KIND, add=add))
    return found


def sit_at(monkeypatch: pytest.MonkeyPatch, answer: str, *, is_terminal: bool = True) -> Stream:
    """Give this answer; what is written to standard error is returned."""
    errors = Stream("", is_terminal=is_terminal)
    monkeypatch.setattr(sys, "stdin", Stream(answer, is_terminal=is_terminal))
    monkeypatch.setattr(sys, "stderr", errors)
    return errors


@pytest.mark.parametrize(
    ("answer", "is_added"),
    [("y\n", True), ("YES\n", True), ("n\n", False), ("", False)],
)
def test_on_a_terminal_it_is_added_after_a_yes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    added: list[str],
    answer: str,
    is_added: bool,
) -> None:
    """Guards people at their first start: one question, and whatever is no yes is a no."""
    errors = sit_at(monkeypatch, answer)
    add_if_missing(Settings(cache_dir=tmp_path))
    assert errors.getvalue().count("llama.cpp is not installed, and nothing else here can run") == 1
    assert "[y/N]" in errors.getvalue()
    assert bool(added) == is_added


def test_without_a_terminal_the_start_says_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: list[str]
) -> None:
    """Guards services and pipes: nothing waits for an answer, and nothing is fetched unasked."""
    errors = sit_at(monkeypatch, "y\n", is_terminal=False)
    with (
        pytest.raises(MissingDependency, match="`jitney backends --add llamacpp` adds it"),
        loading(Settings(cache_dir=tmp_path)),
    ):
        pass
    assert errors.getvalue() == ""
    assert not added


@pytest.mark.parametrize("given", [{}, {"backend": "llamacpp"}, {"gpu_layers": 3}])
def test_whoever_said_yes_before_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, added: list[str], given: dict[str, int | str]
) -> None:
    """Guards `serve --yes` in a script, however llama.cpp comes to be the one that is needed."""
    errors = sit_at(monkeypatch, "", is_terminal=False)
    settings = replace(Settings(cache_dir=tmp_path), **given)  # type: ignore[arg-type]
    add_if_missing(settings, yes=True)
    assert added == [""]
    assert "[y/N]" not in errors.getvalue()
    assert "llama.cpp 0.9.0 was added" in errors.getvalue()


@pytest.mark.usefixtures("added")
def test_nothing_is_added_where_something_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards everybody else: no question where OpenVINO runs the model, or no model is needed."""
    errors = sit_at(monkeypatch, "y\n")
    add_if_missing(Settings(cache_dir=tmp_path, backend="fake"))
    stand_in(tmp_path, monkeypatch)
    add_if_missing(Settings(cache_dir=tmp_path / "other"))
    assert errors.getvalue() == ""


def test_a_name_with_a_gpu_asks_for_that_library(tmp_path: Path, added: list[str]) -> None:
    """Guards `--add llamacpp-vulkan`."""
    add_backend("llamacpp-vulkan", Settings(cache_dir=tmp_path))
    assert added == ["vulkan"]
    with pytest.raises(ConfigError, match="--add takes llamacpp, and got 'openvino'; .*OpenVINO"):
        add_backend("openvino", Settings(cache_dir=tmp_path))


def test_what_could_not_be_added_says_why_and_what_else_there_is(tmp_path: Path) -> None:
    """Guards machines for which nothing is prebuilt."""
    with pytest.raises(SetupError, match=r"could not be added: nothing prebuilt .*; the extra"):
        add_backend("llamacpp-abacus", Settings(cache_dir=tmp_path))
