"""The program as people use it: what it prints, and how it ends.

Called in this process; `test_cli_model` and `test_cli_terminal` start it as a program.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.program import expect_sentence, jitney

FAKE = ("--backend", "fake")


def test_it_is_a_program() -> None:
    """Guards the entry point, its standard streams and its exit code."""
    command = [sys.executable, "-m", "jitney", "run", *FAKE, "--greedy", "--max-tokens", "12"]
    done = subprocess.run(command, input=b"hello\n", capture_output=True, timeout=240, check=False)
    given = ("run", *FAKE, "--greedy", "--max-tokens", "12", "hello")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == jitney(*given).stdout


def test_help_and_version_say_what_there_is() -> None:
    """Guards the first minute: help for the program and a command, on standard output."""
    top = jitney("--help")
    assert top.returncode == 0
    for word in ("run", "chat", "demo", "pull", "config show", "--version"):
        assert word in top.stdout
    done = jitney("config", "show", "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: jitney config show")
    assert "--kv-tokens" in done.stdout
    assert jitney("--version").stdout.startswith("jitney 0.")
    assert jitney().returncode == 2


def test_only_the_answer_is_on_standard_output() -> None:
    """Guards pipes: statistics and notes must not get into what a program reads."""
    plain = jitney("run", *FAKE, "--greedy", "--max-tokens", "12", "hello")
    assert plain.returncode == 0
    assert plain.stderr == ""
    assert plain.stdout.endswith("\n")
    with_stats = jitney("run", *FAKE, "--greedy", "--max-tokens", "12", "--stats", "hello")
    assert with_stats.stdout == plain.stdout
    assert "tokens/s" in with_stats.stderr


def test_several_prompts_are_answered_in_order_as_each_would_be_alone() -> None:
    """Guards batching: headings in order, and every answer under its own."""
    given = ("run", *FAKE, "--greedy", "--max-tokens", "12")
    alone = [jitney(*given, word).stdout for word in ("one", "two", "three")]
    together = jitney(*given, "one", "two", "three")
    assert together.stdout == f"[1] one\n{alone[0]}\n[2] two\n{alone[1]}\n[3] three\n{alone[2]}"
    lines = jitney(*given, "--lines", stdin=b"one\n\ntwo\nthree\n")
    assert lines.stdout == together.stdout


def test_json_has_a_line_for_every_prompt_however_many() -> None:
    """Guards long lists: more prompts than may wait are handed in as room appears."""
    prompts = [f"prompt {number}" for number in range(150)]
    done = jitney(
        *("run", *FAKE, "--lines", "--json", "--max-tokens", "4"),
        *("--max-num-seqs", "4", "--max-num-queued-reqs", "8"),
        stdin="\n".join(prompts).encode(),
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["prompt"] for answer in answers] == prompts
    assert [answer["index"] for answer in answers] == list(range(150))
    for answer in answers:
        assert answer["finish_reason"] in ("length", "stop")
        assert 1 <= answer["usage"]["completion_tokens"] <= 4
        assert answer["times"]["total_s"] > 0


def test_one_bad_prompt_among_many_does_not_cost_the_others() -> None:
    """Guards batches: the failure is told, the rest is answered, and the exit code says so."""
    given = ("run", *FAKE, "--kv-tokens", "64", "--max-tokens", "4")
    done = jitney(*given, "--json", "short", "long " * 100, "brief")
    assert done.returncode == 1
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in answer for answer in answers] == [False, True, False]
    assert done.stderr.startswith("jitney: prompt 2: ")
    headed = jitney(*given, "short", "long " * 100, "brief")
    assert headed.returncode == 1
    assert "[3] brief" in headed.stdout


def test_answers_keep_to_a_schema_a_regex_and_a_stop_text(tmp_path: Path) -> None:
    """Guards structured output: a fake model writes noise, so only the constraint can hold."""
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["red", "blue"]}', encoding="utf-8")
    done = jitney("run", *FAKE, "--json-schema", schema, "--max-tokens", "40", "colour?")
    assert json.loads(done.stdout) in ("red", "blue")
    done = jitney("run", *FAKE, "--regex", "[0-9]{4}-[0-9]{2}", "when?")
    year, month = done.stdout.strip().split("-")
    assert (len(year), len(month)) == (4, 2)
    assert year.isdigit()
    given = ("run", *FAKE, "--greedy", "--max-tokens", "12", "hello")
    text = jitney(*given).stdout
    word = text.split()[2]
    stopped = jitney(*given, "--stop", word).stdout
    assert stopped.rstrip("\n") == text[: text.index(word)].rstrip("\n")


def test_the_same_seed_draws_the_same_answer() -> None:
    """Guards reproducibility from the command line."""
    given = ("run", *FAKE, "--temperature", "1", "--max-tokens", "20", "hello")
    texts = [jitney(*given, "--seed", seed).stdout for seed in ("5", "5", "6")]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_raw_leaves_the_prompt_as_it_is() -> None:
    """Guards --raw: the chat template adds tokens, and a system message adds more."""

    def prompt_tokens(*words: str) -> int:
        done = jitney("run", *FAKE, "--json", "--max-tokens", "1", *words, "hello")
        count = json.loads(done.stdout)["usage"]["prompt_tokens"]
        assert isinstance(count, int)
        return count

    assert prompt_tokens("--raw") == 5
    assert prompt_tokens() > 5
    assert prompt_tokens("--system", "Be brief.") > prompt_tokens()
    expect_sentence(jitney("run", *FAKE, "--raw", "--system", "x", "hello"), 2, "--system")


def test_chat_keeps_what_was_said_and_can_forget_it() -> None:
    """Guards history: a second turn's prompt holds the first; /reset gives it up."""
    script = b"hello\nhello\n/reset\nhello\n/system Be brief.\n/system\n/stats\n/nonsense\n/help\n"
    done = jitney("chat", *FAKE, "--greedy", "--max-tokens", "8", stdin=script)
    assert done.returncode == 0
    figures = [line for line in done.stderr.splitlines() if "context" in line]
    used = [int(line.split("context ")[1].split(" of")[0]) for line in figures]
    assert len(used) == 3
    assert used[1] > used[0]
    assert used[2] == used[0]
    answers = done.stdout.splitlines()
    assert answers[0] == answers[-1]
    for message in ("begins again", "Be brief.", "tokens made", "no command /nonsense", "/quit"):
        assert message in done.stderr


def test_a_full_chat_says_so_and_drops_nothing_in_silence() -> None:
    """Guards the context: what no longer fits is refused with what to do, and /reset helps."""
    script = b"hello there\n" * 12 + b"/reset\nhello\n/quit\nnever asked\n"
    done = jitney("chat", *FAKE, "--kv-tokens", "96", "--max-tokens", "8", stdin=script)
    assert done.returncode == 0
    assert "no longer fits the context of 96 tokens" in done.stderr
    after = done.stderr.split("begins again.\n")[-1]
    assert "context" in after
    assert "no longer fits" not in after


def test_a_demo_in_a_log_is_plain_text() -> None:
    """Guards CI logs: no control codes, every prompt, and the figures at the end."""
    done = jitney("demo", *FAKE, "--max-tokens", "16")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert done.stdout.count("== ") == 8
    assert "8 answers, " in done.stdout.splitlines()[-1]
    assert "tokens/s" in done.stdout.splitlines()[-1]


def test_a_group_that_cannot_be_full_starts() -> None:
    """Guards static: a prompt, a turn of a chat and the demo waited for others for ever."""
    static = (*FAKE, "--strategy", "static", "--max-tokens", "8")
    assert jitney("run", *static, "hi").returncode == 0
    assert jitney("chat", *static, stdin=b"hi\nho\n").stderr.count("context ") == 2
    assert "8 answers, " in jitney("demo", *static).stdout


def test_config_show_says_where_each_value_came_from(tmp_path: Path) -> None:
    """Guards operators: default, file, environment and flag are told apart."""
    file = tmp_path / "jitney.toml"
    file.write_text("max_num_seqs = 3\nprefill_chunk = 5\n", encoding="utf-8")
    words = ("config", "show", "--config", file, "--kv-tokens", "99", "--port", "9000")
    environ = {"JITNEY_PREFILL_CHUNK": "7", "JITNEY_API_KEY": "hush-hush"}
    found = json.loads(jitney(*words, "--json", environ=environ).stdout)
    assert found["max_num_seqs"] == {"value": 3, "source": f"file {file}"}
    assert found["prefill_chunk"] == {"value": 7, "source": "environment JITNEY_PREFILL_CHUNK"}
    assert found["kv_tokens"] == {"value": 99, "source": "flag --kv-tokens"}
    assert found["policy"] == {"value": "fifo", "source": "default"}
    assert found["port"] == {"value": 9000, "source": "flag --port"}
    assert found["shutdown_timeout"] == {"value": 30.0, "source": "default"}
    assert found["api_key"]["source"] == "environment JITNEY_API_KEY"
    assert "hush" not in json.dumps(found)
    table = jitney(*words, environ=environ)
    assert "\x1b" not in table.stdout
    rows = {line.split()[0]: line for line in table.stdout.splitlines()}
    assert set(found) <= set(rows)
    assert "flag --kv-tokens" in rows["kv_tokens"]
    assert "flag --port" in rows["port"]
    assert "the name of its file" in rows["served_model_name"]
    assert "hush" not in table.stdout
    # A given none is not the default, and must not look like it.
    lines = jitney("config", "show", "--jobs-dir", "none").stdout.splitlines()
    assert ["jobs_dir", "none", "flag", "--jobs-dir"] in [line.split() for line in lines]


def test_settings_reach_the_engine_from_every_source(tmp_path: Path) -> None:
    """Guards the way down: a context that is set must be the one that refuses."""
    file = tmp_path / "jitney.yaml"
    file.write_text("max_model_len: 8\n", encoding="utf-8")
    words = ("run", *FAKE, "--raw", "a prompt of more than eight tokens")
    expect_sentence(jitney(*words, "--config", file), 1, "context holds 8")
    expect_sentence(jitney(*words, environ={"JITNEY_MAX_MODEL_LEN": "9"}), 1, "context holds 9")
    given = (*words, "--config", file, "--max-model-len", "10")
    expect_sentence(jitney(*given), 1, "context holds 10")
    unset = (*words, "--max-model-len", "none", "--max-tokens", "1")
    assert jitney(*unset, environ={"JITNEY_MAX_MODEL_LEN": "9"}).returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "--kv-token", "9", "hi"], 2, "the nearest is --kv-tokens"),
        (["rum", "hi"], 2, "the nearest is run"),
        (["run", "--bogus", "hi"], 2, "jitney run --help lists them"),
        (["zzzzzz"], 2, "there are run, "),
        (["run", "--kv-tokens"], 2, "--kv-tokens"),
        (["run", "--kv-tokens", "many", "hi"], 2, "expected a whole number"),
        (["run", "--max-num-batched-tokens", "4", "--max-num-seqs", "16", "hi"], 2, "above"),
        (["run", *FAKE, "--kv-tokens", "10", "a longer prompt"], 1, "context holds 10"),
        (["run", *FAKE], 2, "empty"),
        (["run", *FAKE, "--max-tokens", "0", "hi"], 2, "max_tokens"),
        (["run", *FAKE, "--max-tokens", "x", "hi"], 2, "--max-tokens"),
        (["run", *FAKE, "--temperature", "9", "hi"], 2, "temperature"),
        (["run", *FAKE, "--regex", "[0-9", "hi"], 2, "constraint"),
        (["run", *FAKE, "word " * 6000], 1, "shorten the prompt"),
        (["run", "--config", "missing.yaml", "hi"], 2, "no settings file"),
        (["run", "--model", "missing.gguf", "hi"], 1, "does not exist"),
        (["chat", "--model", "missing.gguf"], 1, "does not exist"),
    ],
    ids=lambda each: " ".join(each)[:60].strip() if isinstance(each, list) else None,
)
def test_what_cannot_work_is_one_sentence(words: list[str], code: int, message: str) -> None:
    """Guards people against tracebacks: what, why, what to do, and a code for scripts."""
    expect_sentence(jitney(*words), code, message)


@pytest.mark.parametrize(
    ("flag", "name", "content", "message"),
    [
        # JSON that is no schema. What is no JSON is refused before.
        ("--json-schema", "schema.json", '{"type": "objec"}', "objec"),
        ("--config", "jitney.yaml", "max_num_sequences: 2", "Unknown setting max_num_sequences in"),
    ],
)
def test_a_wrong_file_is_one_sentence(
    tmp_path: Path, flag: str, name: str, content: str, message: str
) -> None:
    """Guards files of flags: the whole way from what is in them to the exit code."""
    (tmp_path / name).write_text(content, encoding="utf-8")
    expect_sentence(jitney("run", *FAKE, flag, tmp_path / name, "hi"), 2, message)


def test_binary_input_is_one_sentence() -> None:
    """Guards against a picture piped in by mistake."""
    expect_sentence(jitney("run", *FAKE, stdin=bytes(range(256)) * 8), 2, "not text")
    expect_sentence(jitney("chat", *FAKE, stdin=b"\xff\xfe\n"), 2, "not text")


def test_the_traceback_of_a_failure_is_one_flag_away() -> None:
    """Guards bug reports; and everyone else, who must not see it."""
    done = jitney("run", *FAKE, "--debug", "--config", "missing.yaml", "hi")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
