"""Tests of `jitney.cli.flags`: every setting is a flag, under all its names."""

from pathlib import Path
from typing import Any

import pytest

from jitney.cli.flags import Flag, Given, command_of, resolved, setting_flags, verb_flags
from jitney.cli.verbs import VERBS
from jitney.config import Known, known_settings
from jitney.errors import ConfigError


def spelled(flag: Flag) -> set[str]:
    first = flag.option.default if isinstance(flag.option.default, str) else ""
    return {name for each in (first, *(flag.option.param_decls or ())) for name in each.split("/")}


@pytest.mark.parametrize("known", known_settings(), ids=lambda known: known.name)
def test_every_setting_is_a_flag_with_its_help(known: Known) -> None:
    """Guards the one definition: a setting added to the config must reach the command line."""
    flags = {flag.name: flag for flag in setting_flags()}
    assert known.flag in spelled(flags[known.name])
    assert known.flag_off is None or known.flag_off in spelled(flags[known.name])
    assert known.option.help in (flags[known.name].option.help or "")
    for alias in known.aliases:
        assert flags[alias].option.hidden


def test_run_serve_chat_demo_and_show_take_all_settings() -> None:
    """Guards `config show` as a rehearsal of the others: all five take the same settings."""
    names = {flag.name for flag in setting_flags()}
    for verb in VERBS:
        if verb.settings is None:
            assert names <= {flag.name for flag in verb_flags(verb)}
    assert {verb.path for verb in VERBS if verb.settings is None} == {
        ("run",),
        ("serve",),
        ("chat",),
        ("demo",),
        ("config", "show"),
    }


def test_a_verb_may_take_some_settings_only() -> None:
    """Guards `pull` against flags that would do nothing."""
    names = {flag.name for flag in setting_flags(("cache_dir",))}
    assert names == {"cache_dir", "cache"}


def test_a_command_hands_options_and_settings_over_apart() -> None:
    """Guards the bridge from typer: a value must arrive where its definition stands."""
    seen: list[tuple[Any, Given]] = []
    helped: list[bool] = []

    def body(options: Any, given: Given) -> int:
        seen.append((options, given))
        return 7

    verb = VERBS[0]
    values = {flag.name: flag.default for flag in verb_flags(verb)}
    call = command_of(verb, body, lambda: helped.append(True))
    assert call(**values | {"prompts": ["a"], "kv_tokens": "64", "config": Path("x.yaml")}) == 7
    options, given = seen[0]
    assert options.prompts == ["a"]
    assert given.flags["kv_tokens"] == "64"
    assert given.config == Path("x.yaml")
    assert call(**values | {"help": True}) == 0
    assert helped == [True]


def test_flags_are_read_by_the_config() -> None:
    """Guards the values: what is wrong is said by the setting's own form, naming the flag."""
    given = Given({"max_num_seqs": "3", "backend_process": True, "seed": None}, None)
    found = resolved(given)
    assert found.settings.max_num_seqs == 3
    assert found.settings.backend_process is True
    assert found.sources["max_num_seqs"] == "flag --max-num-seqs"
    with pytest.raises(ConfigError, match="--max-num-seqs"):
        resolved(Given({"max_num_seqs": "many"}, None))


def test_the_help_of_serve_does_not_contradict_itself() -> None:
    """Guards its first lines: the backend has a process of its own unless someone says no."""
    serve = next(verb for verb in VERBS if verb.path == ("serve",))
    flag = next(each for each in verb_flags(serve) if each.name == "backend_process")
    assert "Default: true for jitney serve" in (flag.option.help or "")
