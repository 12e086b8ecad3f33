"""Tests of `jitney.config.resolve`: what is in force, where it came from, what is refused."""

from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from jitney.config import (
    Settings,
    for_serving,
    known_serve_settings,
    known_settings,
    nearest,
    resolve,
)
from jitney.errors import ConfigError


def write(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def test_each_source_is_stronger_than_the_one_before(tmp_path: Path) -> None:
    """Guards the order: a value from a weaker source would be in force."""
    file = write(tmp_path, "a.yaml", "max_num_seqs: 2\nprefill_chunk: 3\nseed: 4\n")
    environ = {"JITNEY_PREFILL_CHUNK": "30", "JITNEY_SEED": "40"}
    resolved = resolve({"seed": 400}, file, environ)
    settings = resolved.settings
    assert (settings.max_num_seqs, settings.prefill_chunk, settings.seed) == (2, 30, 400)
    assert resolved.sources["max_num_batched_tokens"] == "default"
    assert resolved.sources["max_num_seqs"] == f"file {file}"
    assert resolved.sources["prefill_chunk"] == "environment JITNEY_PREFILL_CHUNK"
    assert resolved.sources["seed"] == "flag --seed"


def test_every_setting_has_a_source() -> None:
    """Guards `config show`: a setting would be missing from the list."""
    resolved = resolve({}, None, {})
    known = (*known_settings(), *known_serve_settings())
    assert set(resolved.sources) == {each.name for each in known}
    assert set(resolved.sources.values()) == {"default"}


@pytest.mark.parametrize("name", ["a.toml", "a.TOML"])
def test_toml_is_read_by_its_ending(tmp_path: Path, name: str) -> None:
    """Guards the second file form."""
    file = write(tmp_path, name, 'max_num_seqs = 2\nmemory_limit = "2GiB"\nwatermark = 0\n')
    settings = resolve({}, file, {}).settings
    assert settings.max_num_seqs == 2
    assert settings.memory_limit == 2**31
    assert settings.watermark == 0.0


def test_an_empty_file_and_an_empty_variable_give_nothing(tmp_path: Path) -> None:
    """Guards compose files, which write NAME= for a variable that is not set."""
    file = write(tmp_path, "a.yml", "# nothing\n")
    assert resolve({}, file, {"JITNEY_SEED": " "}).sources["seed"] == "default"


@pytest.mark.parametrize("value", [None, "none", "None"])
def test_none_in_a_file_is_a_value_where_the_setting_allows_it(
    tmp_path: Path, value: object
) -> None:
    """Guards the way back to a default from a stronger source."""
    file = write(tmp_path, "a.yaml", f"kv_tokens: {'null' if value is None else value}\n")
    resolved = resolve({}, file, {})
    assert resolved.settings.kv_tokens is None
    assert resolved.sources["kv_tokens"] == f"file {file}"
    assert resolve({"kv_tokens": "none"}, None, {"JITNEY_KV_TOKENS": "64"}).settings == (
        resolve({}, None, {}).settings
    )


def test_yaml_truth_values_are_words_again(tmp_path: Path) -> None:
    """Guards `flash_attention: on`, which YAML reads as true."""
    file = write(tmp_path, "a.yaml", "flash_attention: on\nbackend_process: yes\n")
    settings = resolve({}, file, {}).settings
    assert settings.flash_attention == "on"
    assert settings.backend_process is True


def test_an_unknown_key_is_refused_with_the_nearest_known_one(tmp_path: Path) -> None:
    """Guards a misspelt key, which would be ignored in silence."""
    file = write(tmp_path, "a.yaml", "max_num_sequences: 2\n")
    with pytest.raises(ConfigError, match=r"max_num_sequences in file .*a\.yaml.* max_num_seqs\."):
        resolve({}, file, {})
    with pytest.raises(ConfigError, match=r"JITNEY_WATERMARKS in .* JITNEY_WATERMARK\."):
        resolve({}, None, {"JITNEY_WATERMARKS": "0"})
    with pytest.raises(ConfigError, match=r"--polcy in the flags.* --policy\."):
        resolve({"polcy": "fifo"}, None, {})
    with pytest.raises(ConfigError, match=r"polcy in the arguments.* is policy\."):
        resolve({"polcy": "fifo"}, None, {}, given_as="argument")


def test_an_unreadable_value_is_refused_with_name_value_form_and_source(tmp_path: Path) -> None:
    """Guards the message: each of the four facts is needed to mend it."""
    for environ, flags, source in (
        ({"JITNEY_MAX_NUM_SEQS": "many"}, {}, "environment JITNEY_MAX_NUM_SEQS"),
        ({}, {"max_num_seqs": "many"}, "flag --max-num-seqs"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve(flags, None, environ)
        message = str(caught.value)
        for fact in ("max_num_seqs", "'many'", "a whole number from 1 to 4096", source):
            assert fact in message


def test_a_setting_given_twice_in_one_place_is_refused(tmp_path: Path) -> None:
    """Guards two names for one setting: which of them is in force would be chance."""
    file = write(tmp_path, "a.yaml", "max_num_seqs: 2\nn_parallel: 3\n")
    with pytest.raises(ConfigError, match="max_num_seqs is given twice"):
        resolve({}, file, {})
    twice = write(tmp_path, "b.yaml", "seed: 2\nseed: 3\n")
    with pytest.raises(ConfigError, match="seed is given twice"):
        resolve({}, twice, {})
    with pytest.raises(ConfigError, match="JITNEY_CACHE and environment JITNEY_CACHE_DIR"):
        resolve({}, None, {"JITNEY_CACHE": "a", "JITNEY_CACHE_DIR": "b"})


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"max_num_seqs": 17, "max_num_batched_tokens": 16}, "max_num_seqs .17. is above"),
        ({"max_model_len": 65, "kv_tokens": 64}, "max_model_len .65. is above kv_tokens .64."),
        ({"prefill_chunk": 65, "max_num_batched_tokens": 64}, "prefill_chunk .65. is above"),
        ({"kv_tokens": 64, "memory_limit": "1GiB"}, "give one of them"),
        ({"max_model_len": 65, "max_num_queued_tokens": 64}, "must be able to wait"),
        ({"min_batch_size": 5, "max_num_seqs": 4}, "no more can start together"),
    ],
)
def test_impossible_combinations_are_refused(flags: dict[str, object], sentence: str) -> None:
    """Guards against a limit that is lowered in silence."""
    with pytest.raises(ConfigError, match=sentence) as caught:
        resolve(flags, None, {})
    for name in flags:
        assert f"{name}: flag --" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"group_answers": "each"}, "set strategy to static or dynamic or adaptive"),
        ({"prefill_batch_size": 2}, "set mix to separate"),
        ({"min_batch_size": 2}, "set max_wait_ms above 0"),
        ({"min_batch_size": 2, "strategy": "dynamic", "max_wait_ms": 0}, "set max_wait_ms above 0"),
        ({"min_batch_size": 2, "strategy": "static"}, "set strategy to dynamic"),
        ({"decode_batch_size": 2}, "set mix to separate"),
        ({"target_stall_ms": 20, "mix": "balanced"}, "set mix to bounded-stall or separate"),
    ],
)
def test_what_has_no_effect_is_refused_where_it_is_given(
    flags: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    """Guards whoever sets a number and believes it is in force; its default is nobody's wish."""
    name, *others = flags
    variables = {f"JITNEY_{key.upper()}": str(each) for key, each in flags.items()}
    file = write(tmp_path, "a.yaml", "".join(f"{key}: {each}\n" for key, each in flags.items()))
    in_file, in_environment = partial(resolve, {}, file, {}), partial(resolve, {}, None, variables)
    for read in (in_file, in_environment, partial(resolve, flags, None, {})):
        with pytest.raises(ConfigError, match=sentence):
            read()
    with pytest.raises(ConfigError, match=f"{name} is given but .*{name}: argument {name}"):
        resolve(flags, None, {}, given_as="argument")
    without = resolve({key: flags[key] for key in others}, None, {})
    assert without.sources[name] == "default"


@pytest.mark.parametrize(
    ("name", "chooser", "choice"),
    [
        ("max_wait_ms", "strategy", "continuous"),
        ("max_wait_ms", "strategy", "static"),
        ("max_wait_ms", "strategy", "dynamic"),
        ("max_wait_ms", "strategy", "adaptive"),
        ("prefill_batch_size", "mix", "separate"),
        ("decode_batch_size", "mix", "separate"),
        ("target_stall_ms", "mix", "bounded-stall"),
        ("target_stall_ms", "mix", "separate"),
    ],
)
def test_what_has_an_effect_is_taken(name: str, chooser: str, choice: str) -> None:
    """Guards the other side: a refusal too many would take the setting away."""
    resolved = resolve({name: 7, chooser: choice}, None, {})
    assert getattr(resolved.settings, name) == 7


def test_a_default_chunk_follows_a_smaller_budget() -> None:
    """Guards `--max-num-batched-tokens 64` alone, which must not need a second flag."""
    assert resolve({"max_num_batched_tokens": 64}, None, {}).settings.prefill_chunk == 64


def test_a_server_has_a_backend_process_unless_told_otherwise() -> None:
    assert for_serving(resolve({}, None, {})).backend_process
    assert not for_serving(resolve({"backend_process": False}, None, {})).backend_process
    assert not resolve({}, None, {}).settings.backend_process


def test_settings_made_directly_are_checked_as_well() -> None:
    """Guards the type itself: no instance holds values that cannot work."""
    with pytest.raises(ConfigError, match="max_num_seqs is 0; expected a whole number"):
        Settings(max_num_seqs=0)
    with pytest.raises(ConfigError, match="give one of them"):
        Settings(kv_tokens=64, memory_limit=2**30)
    assert Settings().max_num_seqs == 16


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("a.yaml", "seed: [", r"not valid YAML: line 1, column 8: expected"),
        ("a.toml", "seed =", "not valid TOML"),
        ("a.toml", "seed = 1\nseed = 2", "not valid TOML"),
        ("a.yaml", "seed: " + "9" * 5000, "not valid YAML|seed is"),
        ("a.yaml", "- seed", "must hold names"),
        ("a.yaml", "1: 2", "must hold names"),
        ("a.yaml", "seed: " + "[" * 20_000, "nested too deeply|not valid YAML"),
        ("a.yaml", "seed: !!python/object/apply:os.getcwd []", "not valid YAML"),
        ("a.yaml", "# " + "x" * 70_000, "larger than 65536 bytes"),
        ("a.json", "{}", "must end in"),
    ],
)
def test_what_is_no_settings_file_is_refused_in_a_sentence(
    tmp_path: Path, name: str, text: str, sentence: str
) -> None:
    """Guards against a traceback, a hang or code run from a file."""
    with pytest.raises(ConfigError, match=sentence) as caught:
        resolve({}, write(tmp_path, name, text), {})
    assert len(str(caught.value)) < 500 + len(str(tmp_path))


def test_a_vast_value_from_a_small_file_is_not_printed_whole(tmp_path: Path) -> None:
    """Guards the error message against nested YAML aliases, which multiply when printed."""
    lines = ["watermark:", "  a: &a [x, x, x, x, x, x, x, x]"]
    lines += [
        f"  {letter}: &{letter} [{', '.join([f'*{before}'] * 8)}]"
        for before, letter in pairwise("abcdefghijklmnop")
    ]
    with pytest.raises(ConfigError, match="watermark is a table in file"):
        resolve({}, write(tmp_path, "a.yaml", "\n".join(lines)), {})
    with pytest.raises(ConfigError) as caught:
        resolve({"seed": "x" * 100_000}, None, {})
    assert len(str(caught.value)) < 500


def test_a_missing_file_a_folder_and_bytes_are_refused(tmp_path: Path) -> None:
    """Guards the same, for what is not readable text at all."""
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("missing.yaml", "folder.yaml", "bytes.yaml"):
        with pytest.raises(ConfigError, match=name):
            resolve({}, tmp_path / name, {})


def test_the_nearest_word_is_the_one_meant() -> None:
    """Guards the suggestion against being any word at all."""
    words = ("max_num_seqs", "max_model_len", "policy")
    assert nearest("MAX_NUM_SEQ", words) == "max_num_seqs"
    assert nearest("model_len", words) == "max_model_len"
    assert nearest("--rum", ("--run", "--show")) == "--run"
    assert nearest("seqs", words) == "max_num_seqs"
    assert nearest("--bogus", ("--host", "--seed")) is None
    assert nearest("tensor_parallel_size", ("n_parallel", "parallel")) is None
