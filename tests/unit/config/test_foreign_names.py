"""Tests of `jitney.config.foreign_names`: each works or is refused in a sentence."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from jitney.cli.main import main
from jitney.config import Resolved, Setting, known_serve_settings, known_settings, resolve
from jitney.config.definitions import flag_name
from jitney.config.foreign_names import FOREIGN_NAMES, SYNONYMS, TABLES, ForeignName
from jitney.config.forms import value_text
from jitney.core.scheduler_settings import Mix, Policy, Strategy
from jitney.errors import ConfigError
from jitney.server import limits

KNOWN = {known.name: known for known in (*known_settings(), *known_serve_settings())}
SERVED = {known.name for known in known_serve_settings()}
RENAMED = [word for word in FOREIGN_NAMES if word.form is None]
PUT_DIFFERENTLY = [word for word in FOREIGN_NAMES if word.form is not None]

VALUES = (7, 2**30, "sjf", "adaptive", "off")
"""One of them is a value of each setting that has another name, and not its default."""

BESIDE: dict[str, dict[str, object]] = {
    "max_num_batched_tokens": {"max_num_seqs": 7},
    "prefill_batch_size": {"mix": "separate"},
    "decode_batch_size": {"mix": "separate"},
    "min_batch_size": {"max_wait_ms": 7},
}

CANDIDATES: dict[str | None, tuple[object, ...]] = {None: (True, False), "N": (1, 2), "X": (0, 5)}

PRINTED = (Path(__file__).parents[3] / "examples" / "themisdb.yaml").read_text(encoding="utf-8")


def value_for(known: Setting) -> object:
    """A value that is not the default."""
    for value in VALUES:
        with suppress(ValueError):
            if known.form.read(value) != known.default:
                return value
    pytest.fail(f"{known.name} takes none of them")


def by_name(word: ForeignName) -> str:
    return word.name


def write(folder: Path, text: str, name: str = "a.yaml") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def read(folder: Path, text: str, name: str = "a.yaml") -> Resolved:
    return resolve({}, write(folder, text, name), {})


def value_of(resolved: Resolved, name: str) -> object:
    owner = resolved.serving if name in SERVED else resolved.settings
    return getattr(owner, name)


def test_no_word_stands_for_two_things() -> None:
    """Guards the table: one that is a setting too, or is there twice, would mean either."""
    names = [*KNOWN, *TABLES, *(word.name for word in FOREIGN_NAMES)]
    assert len(names) == len(set(names))
    assert {word.setting for word in FOREIGN_NAMES} - {None} <= set(KNOWN)
    assert all(word.name == word.name.lower() for word in FOREIGN_NAMES)


@pytest.mark.parametrize("word", RENAMED, ids=by_name)
def test_another_name_is_its_setting_in_every_source(word: ForeignName, tmp_path: Path) -> None:
    """Guards each row of the table: in a file in any case, in the environment, as a flag."""
    assert word.setting is not None
    known = KNOWN[word.setting]
    value = value_for(known)
    beside = BESIDE.get(word.setting, {})
    expected = known.form.read(value)
    others = "".join(f"{name}: {each}\n" for name, each in beside.items())
    upper = word.name.upper().replace("_", "-")
    found = [
        read(tmp_path, f"{word.name}: {value}\n{others}"),
        read(tmp_path, f"{upper}: {value}\n{others}"),
        resolve(beside, None, {f"JITNEY_{word.name.upper()}": str(value)}),
        resolve({word.name: value, **beside}, None, {}),
    ]
    if word.setting not in SERVED:
        given = {word.name.upper(): value, **beside}
        found.append(resolve(given, None, {}, given_as="argument"))
    assert [value_of(each, word.setting) for each in found] == [expected] * len(found)


@pytest.mark.parametrize("word", PUT_DIFFERENTLY, ids=by_name)
def test_a_word_put_differently_is_translated_or_refused_in_a_sentence(
    word: ForeignName, tmp_path: Path
) -> None:
    """Guards the rest of the table: each value means something or is refused; none is ignored."""
    assert word.form is not None
    candidates = CANDIDATES.get(word.form.placeholder) or (word.form.placeholder or "").split("|")
    values = dict(word.values)
    for value in candidates:
        text = f"{word.name.upper()}: {str(value).lower()}\n"
        source = f"file {tmp_path}/a.yaml: {word.name.upper()}"
        if value not in values and not word.advice:
            found = read(tmp_path, text)
            taken = {name for name, each in found.sources.items() if each == source}
            assert taken == {word.setting} - {None}
            assert word.setting is None or value_of(found, word.setting) == value
        elif value not in values:
            with pytest.raises(ConfigError) as refused:
                read(tmp_path, text)
            assert str(refused.value).startswith(f"{word.name} is {value_text(value)} in file ")
            assert str(refused.value).endswith(f": {word.name.upper()}, and {word.advice}.")
            assert "leave it out" in word.advice
        else:
            found = read(tmp_path, text)
            meant = {name: KNOWN[name].form.read(each) for name, each in values[value].items()}
            assert {name: value_of(found, name) for name in meant} == meant
            assert {name for name, each in found.sources.items() if each == source} == {*meant}
    with pytest.raises(ConfigError, match=f"{word.name} is 'perhaps' in .*; expected "):
        read(tmp_path, f"{word.name}: perhaps\n")
    with pytest.raises(ConfigError, match=f"{word.name} is 'x' in environment JITNEY_"):
        resolve({}, None, {f"JITNEY_{word.name.upper()}": "x"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("enable_priority: true\npolicy: sjf\n", "policy is 'priority' by .* and 'sjf' by "),
        ("policy: fair\nenable_priority: false\n", "policy is 'fair' by .* and 'fifo' by "),
        ("enabled: true\nstrategy: static\n", "strategy is 'continuous' by .* and 'static' by "),
        ("use_flash_attn: true\nflash_attn: off\n", "leave one of them out"),
        (
            "MAX_BATCH: 3\nMAX_INFLIGHT: 3\n",
            "max_num_seqs is given twice, under two of its names, .*BATCH .the static loop of the "
            "Mini-GPT course. and .*FLIGHT .the continuous loop of .*; leave one out",
        ),
        ("cache_type_k: q8_0\ncache_type_v: f16\n", "is 'q8_0' by .* and 'float16' by .*; leave"),
        ("num_workers: 3\nreplicas: 2\n", "replicas is 3 by .* and 2 by .*; leave one"),
        ("llamacpp:\nbackend: openvino\n", "'llamacpp' by .*: llamacpp and 'openvino' by "),
    ],
)
def test_two_words_that_contradict_each_other_are_refused(
    text: str, message: str, tmp_path: Path
) -> None:
    """Guards against the later of two words winning in silence."""
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_a_word_may_stand_beside_what_it_means(tmp_path: Path) -> None:
    """Guards files that say one thing twice: `enable_priority: true` and `policy: priority`."""
    found = read(tmp_path, "enable_priority: true\npolicy: PRIORITY\nenabled: yes\n").settings
    assert (found.policy, found.strategy) == (Policy.PRIORITY, Strategy.CONTINUOUS)


def test_two_words_may_mean_the_same(tmp_path: Path) -> None:
    """Guards llama.cpp's -ctk and -ctv: who gives one gives both, and here they have one type."""
    text = "cache_type_k: q8_0\ncache_type_v: q8_0\nkv_cache_dtype: q8_0\n"
    assert read(tmp_path, text).settings.kv_cache_dtype == "q8_0"


def test_a_stronger_source_overrules_a_word(tmp_path: Path) -> None:
    """Guards the order of sources for words: between two of them there is no contradiction."""
    file = write(tmp_path, "enable_priority: true\n")
    assert resolve({"policy": "sjf"}, file, {}).settings.policy is Policy.SJF


@pytest.mark.parametrize(
    "word", [word.name for word in FOREIGN_NAMES if word.setting in SERVED], ids=str
)
def test_a_word_of_the_server_is_unknown_where_only_the_engine_is_set(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards `LLM(...)` and `jitney run`: such a word was taken, and nothing used it."""
    sentence = f"Unknown setting {word} in the arguments; `jitney serve` has it as --"
    with pytest.raises(ConfigError, match=sentence):
        resolve({word: True}, None, {}, given_as="argument")
    assert main(["run", flag_name(word), "hi"]) == 2
    assert f"There is no option {flag_name(word)} of jitney run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "value", "ours"),
    [
        *(("strategy", each.upper(), each) for each in Strategy),
        *(("policy", each.title(), each) for each in Policy),
        *(("mix", each.replace("-", "_").upper(), each) for each in Mix),
        *((name, value, ours) for name, pairs in SYNONYMS.items() for value, ours in pairs),
        ("strategy", "fixed_size", "static"),
        ("strategy", "dynamic-timeout", "dynamic"),
        ("policy", "shortest_job_first", "sjf"),
        ("policy", "ShortestJobFirst", "sjf"),
        ("strategy", "BatchingStrategy.DynamicTimeout", "dynamic"),
        ("strategy", ".DynamicTimeout", "dynamic"),
        ("policy", "fcfs", "fifo"),
        ("backend", "Fake", "fake"),
        ("group_answers", "TOGETHER", "together"),
    ],
)
def test_names_are_understood_in_any_case_and_spelling(setting: str, value: str, ours: str) -> None:
    """Guards the seeds' spelling of strategies, policies and mixes."""
    beside = {"strategy": "static"} if setting == "group_answers" else {}
    found = resolve({setting: value, **beside}, None, {}).settings
    assert getattr(found, setting) == ours


def test_themisdb_as_printed(tmp_path: Path) -> None:
    """Guards the block that its users have: nested, flat, or with the indentation lost."""
    lost = "\n".join(line.strip() for line in PRINTED.splitlines())
    flat = lost.partition("continuous_batching:\n")[2]
    nested, *others = (read(tmp_path, text).settings for text in (PRINTED, lost, flat))
    # Without its tables it names no plugin.
    assert others == [nested, replace(nested, backend="auto")]
    assert nested.backend == "llamacpp"
    assert (nested.strategy, nested.policy) == (Strategy.CONTINUOUS, Policy.PRIORITY)
    assert (nested.max_num_seqs, nested.min_batch_size, nested.max_wait_ms) == (32, 1, 50)
    assert (nested.kv_tokens, nested.max_model_len) == (131_072, 4096)
    assert nested.enable_preemption
    assert not nested.log_batch_composition


def test_batching_that_is_off_is_one_at_a_time_whatever_the_block_says(tmp_path: Path) -> None:
    """Guards ThemisDB's switch: who turns it in the printed block leaves the other lines there."""
    found = read(tmp_path, PRINTED.replace("enabled: true", "enabled: false"))
    assert (found.settings.max_num_seqs, found.settings.max_wait_ms) == (1, 50)
    assert found.sources["max_num_seqs"].endswith(".continuous_batching.enabled")
    assert resolve({"max_num_seqs": 4}, None, {"JITNEY_ENABLED": "no"}).settings.max_num_seqs == 4


def test_the_constants_of_each_loop_of_the_course_are_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards `IDLE_MS`: it was refused, and a word that is taken and does nothing must say so."""
    found = read(tmp_path, "MAX_INFLIGHT: 3\nIDLE_MS: 5\n").settings
    assert found.max_num_seqs == 3
    (line,) = caplog.messages
    assert "IDLE_MS) has no effect: an idle engine sleeps until a request comes" in line
    static = read(tmp_path, "strategy: static\nMAX_BATCH: 4\nMAX_WAIT_MS: 50\n").settings
    assert (static.max_num_seqs, static.max_wait_ms) == (4, 50)


def test_workers_are_replicas_of_a_server(tmp_path: Path) -> None:
    """Guards `num_workers`: one needs no Ray, and more are as many engines behind one address."""
    assert read(tmp_path, "num_workers: 1\n").serving.replicas is None
    assert read(tmp_path, "num_workers: 3\n").serving.replicas == 3


@pytest.mark.parametrize("outer", range(len(TABLES)))
def test_outer_tables_may_be_missing(outer: int, tmp_path: Path) -> None:
    """Guards the shorter blocks of the guide, such as one that begins with `optimizations:`."""
    tables = TABLES[outer:]
    lines = [f"{'  ' * depth}{table}:" for depth, table in enumerate(tables)]
    inner = "  " * len(tables)
    text = "\n".join([*lines, f"{inner}enabled: true", f"{inner}max_batch_size: 5", ""])
    found = read(tmp_path, text)
    assert found.settings.max_num_seqs == 5
    path = ".".join((*tables, "max_batch_size"))
    assert found.sources["max_num_seqs"] == f"file {tmp_path}/a.yaml: {path}"
    toml = f"[{'.'.join(tables)}]\nMax-Batch-Size = 5\n"
    assert read(tmp_path, toml, "a.toml").settings.max_num_seqs == 5


def test_all_optimizations_of_the_guide(tmp_path: Path) -> None:
    """Guards words that stand beside a table, not in it."""
    text = """
optimizations:
  use_flash_attn: true
  use_kv_cache_reuse: false
  continuous_batching:
    enabled: true
    max_batch_size: 32
"""
    found = read(tmp_path, text).settings
    assert (found.flash_attention, found.enable_prefix_caching) == ("auto", False)
    assert found.max_num_seqs == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("optimizations:\n  seed: 1\n  seed: 2\n", "line 3: seed is given twice"),
        ("optimizations:\n  a: [{b: 1, b: 2}]\n", "line 2: b is given twice"),
        ("seed: 1\noptimizations:\n  seed: 2\n", r"a\.yaml and file .*: optimizations\.seed; "),
        ("optimizations:\n  max_bach_size: 2\n", r"setting optimizations\.max_bach_size in file"),
        ("optimizations:\n  max_batch_size: x\n", r"seqs is 'x' in .*: optimizations\.max_batch_s"),
        ("optimizations: 3\n", "optimizations is 3 in file .*; expected a table of settings"),
        ("optimizations:\n  llamacpp:\n    seed: 1\n", r"Unknown setting optimizations\.llamacpp"),
        ("continous_batching:\n  seed: 1\n", "the nearest known one is continuous_batching"),
        ("optimizations: &a\n  continuous_batching: *a\n", r"Unknown setting .*\.continuous_batc"),
        ("optimizations:\n  1: 2\n", r"Unknown setting optimizations\.1 in file"),
        (
            "optimizations:\n  cache_tokens: 2\n",
            r"cache_tokens is 2 in .*: optimizations\.cache_to",
        ),
    ],
)
def test_messages_name_the_nested_path(text: str, message: str, tmp_path: Path) -> None:
    """Guards whoever has a long nested file and must find the line."""
    with pytest.raises(ConfigError, match=message):
        read(tmp_path, text)


def test_a_waiting_group_must_fit_into_the_queue() -> None:
    """Guards a static group without a timer, which could never fill and would wait for ever."""
    flags = {"strategy": "static", "max_num_seqs": 4}
    with pytest.raises(ConfigError, match=r"max_num_queued_reqs .3. allows fewer"):
        resolve({**flags, "max_num_queued_reqs": 3}, None, {})
    assert resolve({**flags, "max_num_queued_reqs": 4}, None, {}).settings.max_wait_ms is None
    timed = {**flags, "max_num_queued_reqs": 3, "max_wait_ms": 5}
    assert resolve(timed, None, {}).settings.max_wait_ms == 5


def test_advice_names_the_bounds_of_the_server() -> None:
    """Guards sentences that outlive a bound: settings know nothing of the server's."""
    advice = {word.name: word.advice or "" for word in FOREIGN_NAMES}
    assert f" {limits.STALL_S_MAX:.0f} seconds " in advice["stall_timeout"]
    assert f" {limits.SEND_S_MAX:.0f} seconds " in advice["read_timeout"]
    assert f" {limits.PING_S:.0f} seconds;" in advice["sse_ping_interval"]
