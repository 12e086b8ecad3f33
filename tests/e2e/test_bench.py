"""`jitney bench` as people run it, with the fake backend and against a real server, in process."""

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any  # Any: results are JSON values

import pytest

from jitney.cli.main import main
from jitney_lab.bench import stalls, strategies
from jitney_lab.bench.workload import equal
from tests.bench_for_tests import KV_TOKENS, outlast_pauses
from tests.e2e.server.harness import World, running

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_settings_of_the_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("JITNEY_"):
            monkeypatch.delenv(name)


def bench(capsys: Capture, *words: str | Path) -> tuple[dict[str, Any], str]:
    """The last line of a command that must succeed, and what it said."""
    code = main(["bench", *map(str, words)])
    shown = capsys.readouterr()
    assert code == 0, shown.err
    lines = shown.out.splitlines()
    assert "\t" in lines[0]
    found: dict[str, Any] = json.loads(lines[-1])
    return found, shown.out + shown.err


@pytest.mark.parametrize(
    ("name", "words", "load"),
    [
        (
            "strategies",
            "--num-prompts 6 --runs 1 --set max_num_seqs=3 --request-rate 50",
            {"num_prompts": 6, "request_rate": 50.0, "slots": 3},
        ),
        (
            "strategies",
            "--quick --set max_num_seqs=8",
            {"num_prompts": 24, "request_rate": None, "slots": 8},
        ),
        (
            "scaling",
            "--sizes 1,2 --runs 1",
            {"slots": 2, "prompt_count": 32, "completion_count": 64},
        ),
        ("overhead", "--sizes 1,2", {"prompt_count": 32, "completion_count": 96}),
        (
            "stalls",
            f"--input-len 100 --runs 1 --set kv_tokens={KV_TOKENS}",
            {"streams": 8, "arrives_s": 0.01},
        ),
    ],
)
def test_it_prints_a_table_writes_json_and_draws(
    name: str,
    words: str,
    load: dict[str, object],
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Answers of 50 to 200 tokens take a second in each strategy, and prove nothing more.
    monkeypatch.setattr(strategies, "twenty_clients", lambda seed: equal(3, seed=seed))
    if name == "stalls":
        outlast_pauses(monkeypatch)
        monkeypatch.setattr(stalls, "ARRIVES_S", 0.01)
    found, said = bench(capsys, name, "--backend", "fake", *words.split(), "-o", tmp_path / "out")
    assert {"machine", "versions", "commit", "seed", "at"} <= set(found)
    assert (found["benchmark"], found["model"], found["backend"]) == (name, "fake", "fake")
    assert found["load"] == load
    assert json.loads((tmp_path / "out" / f"{name}.json").read_text()) == found
    if find_spec("matplotlib"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "out" / f"{name}.svg").read_text()
    else:
        assert "matplotlib is not installed" in said


def test_a_setting_of_a_file_that_is_not_used_is_told_and_not_in_the_result(
    tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "jitney.yaml"
    file.write_text("strategy: static\nmax_num_seqs: 3\n")
    words = ("scaling", "--backend", "fake", "--sizes", "1,2", "--runs", "1", "--config", file)
    found, said = bench(capsys, *words)
    assert f"strategy (file {file})" in said
    assert found["settings"] == {"backend": "fake"}


def test_load_on_a_server_is_counted_as_the_server_counts_it(
    tmp_path: Path, capsys: Capture
) -> None:
    """Guards the names of a result: they are the same whether tokens came in one chunk or not."""
    with running(World()) as server:
        found, said = bench(
            capsys,
            *("serve", "--base-url", server.url, "--num-prompts", "12", "--input-len", "16"),
            *("--output-len", "6", "--request-rate", "100", "--goodput", "e2el:60000"),
            *("--api-key", "hidden", "-o", tmp_path),
        )
        stats = server.service.engine.stats()
    assert (found["completed"], found["failed"], found["unsent"]) == (12, 0, 0)
    assert found["total_output_tokens"] == 12 * 6 == stats.completion_tokens
    assert found["total_input_tokens"] == stats.prompt_tokens
    assert found["request_goodput"] == pytest.approx(found["request_throughput"])
    assert (found["request_rate"], found["max_concurrency"]) == (100, None)
    assert found["load"] == {"input_len": 16, "output_len": 6}
    assert found["goodput"] == {"e2el": 60_000.0}
    words = ("mean", "median", "std", "p50", "p95", "p99")
    names = {f"{word}_{metric}_ms" for word in words for metric in ("ttft", "tpot", "itl", "e2el")}
    assert names <= set(found)
    assert set(found["percentile_curves_ms"]) == {"ttft", "tpot", "e2el"}
    assert "hidden" not in said
    assert (tmp_path / "serve.png").is_file() is bool(find_spec("matplotlib"))


def test_chats_and_a_trace(tmp_path: Path, capsys: Capture) -> None:
    trace = tmp_path / "day.jsonl"
    line = {"timestamp": 5, "input_length": 4, "output_length": 3}
    trace.write_text((json.dumps(line) + "\n") * 5)
    with running(World()) as server:
        found, _ = bench(
            capsys,
            *("serve", "--base-url", server.url, "--endpoint", "/v1/chat/completions"),
            *("--dataset-path", trace, "--max-concurrency", "2"),
        )
    assert (found["completed"], found["total_output_tokens"]) == (5, 15)
    assert found["max_concurrent_requests"] <= 2
    assert (found["max_concurrency"], found["request_rate"]) == (2, None)
    assert (found["load"], found["request_goodput"]) == ({"dataset": "day.jsonl"}, None)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("serve", "--base-url", "http://127.0.0.1:9"), "is a server running there"),
        (("serve", "-o", "/dev/null/results"), "cannot be written"),
        (("serve", "--tokenizer", "x"), "There is no option --tokenizer of jitney bench serve"),
        (("compare",), "There is no command compare"),
        (("scaling", "--backend", "fake", "--sizes", "0,2"), "--sizes"),
        (("scaling", "--backend", "fake", "--sizes", "4"), "--sizes"),
        (("scaling", "--backend", "fake", "--set", "max_num_seqs=2"), "--set max_num_seqs would"),
        (("stalls", "--backend", "fake", "--set", "mix=separate"), "--set mix would not be used"),
        (("overhead", "--backend", "fake", "--set", "request_timeout_s=1"), "would not be used"),
        (("strategies", "--backend", "fake", "--set", "strategy=static"), "would not be used"),
        (("strategies", "--backend", "fake", "--runs", "0"), "--runs"),
        (("strategies", "--backend", "fake", "--num-prompts", "1000000"), "--num-prompts"),
        (("strategies", "--backend", "fake", "--request-rate", "inf"), "--request-rate"),
        (("strategies", "--quick", "--num-prompts", "9"), "--quick has a load of its own"),
        (("strategies", "--backend", "fake", "-o", "/dev/null"), "cannot be written"),
    ],
)
def test_a_mistake_gets_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: Capture
) -> None:
    assert main(["bench", *words]) != 0
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
