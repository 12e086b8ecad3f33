"""Tests of `jitney.extensions`: what stands beside jitney is found, and its absence is told."""

from importlib.metadata import EntryPoints

import pytest

from jitney import extensions
from jitney.cli.main import main
from jitney.errors import ConfigError


def test_the_commands_of_other_packages_are_found() -> None:
    """Guards `jitney bench` and `jitney plan`, which jitney does not import."""
    paths = {verb.path[0] for verbs in extensions.commands() for verb in verbs}
    assert paths == set(extensions.LAB_COMMANDS)


def test_without_the_other_packages_a_sentence_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards an installation of jitney alone: it serves, and names what it does not have."""
    monkeypatch.setattr(extensions, "entry_points", lambda **_: EntryPoints())
    with pytest.raises(ConfigError, match="Replicas need the package jitney_cluster"):
        extensions.load("check")
    for name in extensions.LAB_COMMANDS:
        assert main([name]) == 2
        assert f"There is no command {name}; it comes with" in (error := capsys.readouterr().err)
        assert error.endswith("install jitney again.\n")
    assert main(["--help"]) == 0
