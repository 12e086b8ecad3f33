"""Tests of `jitney.cli.flags`: every setting is a flag, under all its names."""

from pathlib import Path

import pytest

from jitney.cli.flags import parse, setting_flags, verb_flags
from jitney.cli.verbs import RUN_TOKENS_MAX, all_verbs
from jitney.config import Setting, Settings, known_settings
from jitney.config.definitions import flag_name
from jitney.config.foreign_names import FOREIGN_NAMES
from jitney.config.forms import SWITCH
from jitney.errors import ConfigError

VERBS = all_verbs()
BY_PATH = {verb.path: verb for verb in VERBS}
SERVE, PLAN = BY_PATH["serve",], BY_PATH["plan",]


@pytest.mark.parametrize("known", known_settings(), ids=lambda known: known.name)
def test_every_setting_is_a_flag_with_its_help(known: Setting) -> None:
    """Guards the one definition: a line of help, a valid default, and a flag of its own."""
    assert known.help.endswith(".")
    assert "\n" not in known.help
    value = getattr(Settings(), known.name)
    assert value is None or known.form.read(value) == value
    flags = {flag.name: flag for flag in setting_flags()}
    assert flag_name(known.name) in flags[known.name].spelled
    if known.form is SWITCH:
        assert f"--no-{flag_name(known.name)[2:]}" in flags[known.name].spelled
    assert known.help in flags[known.name].help
    for foreign in FOREIGN_NAMES:
        if foreign.setting == known.name:
            assert flags[foreign.name].help == ""


def test_run_serve_chat_demo_and_show_take_all_settings() -> None:
    """Guards `config show` as a rehearsal of the others: all take the same settings."""
    names = {flag.name for flag in setting_flags()}
    for verb in VERBS:
        if verb.settings is None:
            assert names <= {flag.name for flag in verb_flags(verb)}
    paths = {" ".join(verb.path) for verb in VERBS if verb.settings is None}
    assert paths == {"run", "serve", "batch run", "chat", "demo", "config show"}


def test_a_verb_may_take_some_settings_only() -> None:
    """Guards `pull` against flags that would do nothing."""
    names = {flag.name for flag in setting_flags(("cache_dir",))}
    assert names == {"cache_dir", "cache"}


def test_a_command_gets_its_options_and_the_settings_apart() -> None:
    """Guards the bridge from click: a value must arrive where its definition stands."""
    words = ["a", "--kv-tokens", "64", "--config", "x.yaml", "--stop", "-", "--no-backend-process"]
    parsed = parse(VERBS[0], [*words, "b", "--", "--lines"])
    assert parsed.options.prompts == ("a", "b", "--lines")
    assert parsed.options.stop == ("-",)
    assert parsed.options.max_tokens == RUN_TOKENS_MAX
    assert not parsed.options.lines
    assert parsed.flags["kv_tokens"] == "64"
    assert parsed.flags["backend_process"] is False
    assert parsed.flags["max_num_seqs"] is None
    assert parsed.config == Path("x.yaml")
    assert not parsed.wants_help
    assert parse(VERBS[0], ["--help"]).wants_help


def test_a_setting_may_come_several_times_or_not_at_all() -> None:
    """Guards lists: an empty one would count as given and hide what the environment says."""
    words = ["--served-model-name", "a,b", "--served-model-name", "c"]
    assert parse(SERVE, words).flags["served_model_name"] == ["a,b", "c"]
    assert parse(SERVE, []).flags["served_model_name"] is None


def test_the_help_of_serve_does_not_contradict_itself() -> None:
    """Guards its first lines: the backend has a process of its own unless someone says no."""
    flag = next(each for each in verb_flags(SERVE) if each.name == "backend_process")
    assert "Default: true for jitney serve" in flag.help


def test_a_model_by_position_is_the_setting() -> None:
    """Guards `jitney serve a.gguf`, and against one of two models being dropped in silence."""
    found = parse(SERVE, ["a.gguf"]).resolved()
    assert found.settings.model == Path("a.gguf")
    assert found.sources["model"] == "flag --model"
    with pytest.raises(ConfigError, match="The model is given twice"):
        parse(SERVE, ["a.gguf", "--model", "b.gguf"]).resolved()


def test_a_flag_in_the_place_of_a_value_gets_a_sentence() -> None:
    """Guards a forgotten value: the next flag was taken for it, and its own value was left over."""
    bench = BY_PATH["bench", "serve"]
    for flag in ("--goodput", "--endpoint"):
        with pytest.raises(ConfigError, match=f"{flag} needs a value, and --num-prompts is"):
            parse(bench, [flag, "--num-prompts", "2"])
    assert parse(bench, ["--endpoint=--seed", "--seed", "2"]).options.endpoint == "--seed"
    assert parse(bench, ["--no-ignore-eos", "--seed", "2"]).options.seed == 2
    assert parse(bench, ["--seed", "-1", "--endpoint", "--x"]).options.endpoint == "--x"
    assert parse(VERBS[0], ["--", "--stop", "--seed"]).options.prompts == ("--stop", "--seed")


@pytest.mark.parametrize("word", ["true", "False"])
def test_a_value_of_a_switch_gets_a_sentence(word: str) -> None:
    """Guards `--enabled true hi`: the word was taken for a prompt."""
    for flag, names in (("--enabled", "--enabled or --no-enabled"), ("--json", "--json")):
        with pytest.raises(ConfigError, match=f"{flag} takes no value, .* {word}; write {names}"):
            parse(VERBS[0], [flag, word, "hi"])
    assert parse(VERBS[0], ["--json", "--", word]).options.prompts == (word,)


def test_a_setting_is_given_by_name() -> None:
    """Guards `--set`: all settings of the engine, each named in what is refused."""
    words = ["--set", "max-num-seqs=3", "--set", "n_ctx=64", "--seed", "5"]
    found = parse(PLAN, words).resolved()
    settings = found.settings
    assert (settings.max_num_seqs, settings.kv_tokens, settings.seed) == (3, 64, 5)
    assert found.sources["max_num_seqs"] == "flag --set max-num-seqs"
    for word, sentence in (
        ("polcy=fifo", "Unknown setting polcy in --set; the nearest known one is policy"),
        ("port=1", "Unknown setting port in --set"),
        ("policy", "--set policy has no value; expected NAME=VALUE"),
        ("threads=many", "threads is 'many' in flag --set threads; expected a whole number"),
        ("seed=6", "seed is given twice, .* in flag --seed and flag --set seed"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            parse(PLAN, ["--seed", "5", "--set", word]).resolved()
    with pytest.raises(ConfigError, match="give the setting as --set max_num_seqs=VALUE"):
        parse(PLAN, ["--max-num-seqs", "3"])
