"""`jitney bench` as people run it, with the fake backend and against a real server."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.e2e.server.harness import World, running

WAIT_S = 240


def bench(*words: str | Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JITNEY_")}
    command = [sys.executable, "-m", "jitney", "bench", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=WAIT_S, check=False, env=kept
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("strategies", ("--num-prompts", "8", "--runs", "1", "--set", "max_num_seqs=4")),
        ("scaling", ("--sizes", "1,4", "--runs", "1")),
        ("overhead", ("--sizes", "1,4")),
    ],
)
def test_it_prints_a_table_writes_json_and_draws(
    name: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    done = bench(name, "--backend", "fake", *words, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "\t" in lines[0]
    found = json.loads(lines[-1])
    assert found["benchmark"] == name
    assert {"machine", "versions", "commit", "seed", "at", "load"} <= set(found)
    assert (found["model"], found["backend"]) == ("fake", "fake")
    assert found["settings"]["backend"] == "fake"
    assert json.loads((tmp_path / "out" / f"{name}.json").read_text()) == found
    if find_spec("matplotlib"):
        assert (tmp_path / "out" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / "out" / f"{name}.svg").read_text()
    else:
        assert "matplotlib is not installed" in done.stderr


def test_what_was_asked_for_is_in_the_result() -> None:
    done = bench(
        *("strategies", "--backend", "fake", "--num-prompts", "6", "--runs", "1"),
        *("--set", "max_num_seqs=3", "--request-rate", "50"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["load"] == {"num_prompts": 6, "request_rate": 50.0, "slots": 3}
    assert found["settings"] == {"backend": "fake", "max_num_seqs": 3}


def test_a_setting_of_a_file_that_is_not_used_is_told_and_not_in_the_result(tmp_path: Path) -> None:
    file = tmp_path / "jitney.yaml"
    file.write_text("strategy: static\nmax_num_seqs: 3\n")
    done = bench(
        *("scaling", "--backend", "fake", "--sizes", "1,2", "--runs", "1", "--config", file)
    )
    assert done.returncode == 0, done.stderr
    assert f"strategy (file {file})" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["settings"] == {"backend": "fake"}


def test_load_on_a_server_is_counted_as_the_server_counts_it(tmp_path: Path) -> None:
    with running(World()) as server:
        done = bench(
            *("serve", "--base-url", server.url, "--num-prompts", "12", "--input-len", "16"),
            *("--output-len", "6", "--request-rate", "100", "--goodput", "e2el:60000"),
            *("--metric-percentiles", "50,90", "--api-key", "hidden", "-o", tmp_path),
        )
        stats = server.service.engine.stats()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["completed"] == 12
    assert found["failed"] == 0
    assert found["total_output_tokens"] == 12 * 6 == stats.completion_tokens
    assert found["total_input_tokens"] == stats.prompt_tokens
    assert found["request_goodput"] == pytest.approx(found["request_throughput"])
    assert found["p90_ttft_ms"] >= found["p50_ttft_ms"] > 0
    assert (found["request_rate"], found["burstiness"], found["max_concurrency"]) == (100, 1, None)
    assert found["goodput"] == {"e2el": 60_000.0}
    assert found["load"]["input_len"] == 16
    assert "hidden" not in done.stdout + done.stderr
    assert set(found["percentile_curves_ms"]) == {"ttft", "tpot", "e2el"}
    drawn = (tmp_path / "serve.png").is_file()
    assert drawn is bool(find_spec("matplotlib"))


def test_chats_and_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "day.jsonl"
    line = {"timestamp": 5, "input_length": 4, "output_length": 3}
    trace.write_text((json.dumps(line) + "\n") * 5)
    with running(World()) as server:
        done = bench(
            *("serve", "--base-url", server.url, "--endpoint", "/v1/chat/completions"),
            *("--dataset-path", trace, "--max-concurrency", "2"),
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["completed"], found["total_output_tokens"]) == (5, 15)
    assert found["max_concurrent_requests"] <= 2
    assert (found["max_concurrency"], found["request_rate"]) == (2, None)
    assert found["load"] == {"dataset_name": "trace", "dataset": "day.jsonl"}


def test_a_command_line_of_vllm_works_and_its_result_has_their_names(tmp_path: Path) -> None:
    """Guards what is pasted: flags, the file, and the names that people's scripts read."""
    with running(World()) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        done = bench(
            *("serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
            *("--host", host, "--port", port, "--model", "fake", "--dataset-name", "random"),
            *("--random-input-len", "8", "--random-output-len", "4", "--num-prompts", "6"),
            *("--num-warmups", "2", "--max-concurrency", "3", "--disable-tqdm"),
            *(
                "--goodput",
                "ttft:60000",
                "--goodput",
                "itl:60000",
                "--percentile-metrics",
                "ttft,itl",
            ),
            *("--metric-percentiles", "90", "--temperature", "0.5", "--top-p", "0.9"),
            *("--extra-body", '{"presence_penalty": 0.1}', "--header", "x-tenant=blue"),
            *("--save-result", "--save-detailed", "--result-dir", tmp_path, "--label", "mine"),
            *("--metadata", "version=7", "tp=1", "commit=theirs", "benchmark=theirs"),
        )
        stats = server.service.engine.stats()
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert stats.completion_tokens == (6 + 2) * 4
    assert (found["completed"], found["total_output_tokens"]) == (6, 24)
    assert found["request_goodput"] == found["request_throughput"]
    assert found["goodput"] == {"ttft": 60_000.0, "itl": 60_000.0}
    assert {name for name in found if name.endswith("_ms") and "curves" not in name} == {
        f"{word}_{metric}_ms"
        for word in ("mean", "median", "std", "p90")
        for metric in ("ttft", "itl")
    }
    assert {"date", "endpoint_type", "tokenizer_id", "max_output_tokens_per_s"} <= set(found)
    assert (found["backend"], found["label"], found["model_id"]) == ("openai-chat", "mine", "fake")
    assert (found["version"], found["tp"]) == ("7", "1")
    assert "theirs" not in (found["commit"], found["benchmark"])
    assert found["metadata"]["commit"] == "theirs"
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("mine-infqps-concurrency3-fake-")
    saved = json.loads(file.read_text())
    assert saved.items() >= found.items()
    assert [len(saved[name]) for name in ("ttfts", "itls", "start_times", "errors")] == [6] * 4


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("serve", "--base-url", "http://127.0.0.1:9"), "is a server running there"),
        (("serve", "--base-url", "ftp://x"), "expected an address"),
        (("serve", "--base-url", "http://127.0.0.1:9", "--goodput", "ttft"), "METRIC:MS"),
        (("serve", "--dataset-path", "none.jsonl"), "cannot be read"),
        (("serve", "--request-rate", "0"), "--request-rate"),
        (("serve", "--burstiness", "2"), "--burstiness would not be used without"),
        (("serve", "--dataset-path", "x", "--num-prompts", "5"), "--num-prompts would not be used"),
        (("serve", "--metric-percentiles", "101"), "--metric-percentiles"),
        (("scaling", "--backend", "fake", "--sizes", "0,2"), "--sizes"),
        (("scaling", "--backend", "fake", "--sizes", "4"), "--sizes"),
        (("compare", "--clients", "many"), "--clients"),
        (("compare", "--backend", "fake"), "computes nothing"),
        (("compare", "--model", "README.md"), "README.md is not a GGUF"),
        (("scaling", "--backend", "fake", "--set", "max_num_seqs=2"), "--set max_num_seqs would"),
        (("stalls", "--backend", "fake", "--set", "mix=separate"), "--set mix would not be used"),
        (("overhead", "--backend", "fake", "--set", "request_timeout_s=1"), "would not be used"),
        (("strategies", "--backend", "fake", "--set", "strategy=static"), "would not be used"),
        (("strategies", "--backend", "fake", "--runs", "0"), "--runs"),
        (("strategies", "--backend", "fake", "--num-prompts", "0"), "--num-prompts"),
        (("strategies", "--backend", "fake", "--request-rate", "inf"), "--request-rate"),
        (("strategies", "--backend", "fake", "--num-prompts", "1000000"), "--num-prompts"),
        (("serve", "--num-prompts", "1000000", "--input-len", "1000"), "lower --num-prompts"),
        (("serve", "--endpoint", "v1/completions"), "--endpoint"),
        (("serve", "-o", "/dev/null/results"), "cannot be written"),
        (("strategies", "--backend", "fake", "-o", "/dev/null"), "cannot be written"),
    ],
)
def test_a_mistake_gets_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    done = bench(*words)
    assert done.returncode != 0
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_secret_is_refused_and_never_shown() -> None:
    for words in (("--base-url", "http://me:hidden@127.0.0.1:9"), ("--api-key", "hidden\n")):
        done = bench("serve", *words)
        assert done.returncode == 2
        assert words[0] in done.stderr
        assert "hidden" not in done.stdout + done.stderr
