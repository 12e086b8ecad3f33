"""`jitney bench serve`: the load that its flags describe, and what is refused before it is sent."""

from pathlib import Path

import pytest

from jitney.cli.flags import parse
from jitney.config import resolve
from jitney.errors import ConfigError, SetupError
from jitney_lab.bench.workload import Workload
from jitney_lab.cli.bench_serve import run_serve, target_of, workload_of
from jitney_lab.cli.bench_verbs import BENCH_VERBS, ServeLoadOptions

VERB = BENCH_VERBS[-1]
NOBODY = ("--base-url", "http://127.0.0.1:9", "--model", "m")


def options(*words: str) -> ServeLoadOptions:
    found = parse(VERB, list(words)).options
    assert isinstance(found, ServeLoadOptions)
    return found


def load(*words: str) -> Workload:
    return workload_of(options(*words))[0]


def test_a_load_has_its_lengths_and_says_so() -> None:
    workload, described = workload_of(options("--num-prompts", "3", "--input-len", "7"))
    assert [(job.prompt_count, job.completion_count) for job in workload.jobs] == [(7, 64)] * 3
    assert described == {"request_rate": "inf", "load": {"input_len": 7, "output_len": 64}}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--base-url", "ftp://x"), "expected an address"),
        (("--base-url", "http://me:hidden@127.0.0.1:9"), "--base-url"),
        ((*NOBODY, "--api-key", "hidden\n"), "--api-key"),
        ((*NOBODY, "--endpoint", "v1/completions"), "--endpoint"),
        ((*NOBODY, "--goodput", "ttft"), "METRIC:MS"),
        ((*NOBODY, "--goodput", "speed:5"), "--goodput speed:5 is not METRIC:MS"),
        ((*NOBODY, "--request-rate", "0"), "--request-rate"),
        ((*NOBODY, "--max-concurrency", "0"), "--max-concurrency is 0"),
        ((*NOBODY, "--output-len", "0"), "--output-len is 0"),
        ((*NOBODY, "--num-prompts", "1000000", "--input-len", "1000"), "lower --num-prompts"),
        ((*NOBODY, "--dataset-path", "none.jsonl"), "cannot be read"),
        ((*NOBODY, "--dataset-path", "x", "--num-prompts", "5"), "--num-prompts would not be used"),
    ],
)
def test_a_wrong_or_useless_flag_gets_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run_serve(options(*words), resolve({}, None, {}))
    assert sentence in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards keys: a flag is what others can read in `ps`."""
    monkeypatch.setenv("JITNEY_API_KEY", "hidden\nkey,another")
    with pytest.raises(ConfigError, match="cannot be sent in a header") as caught:
        run_serve(options(*NOBODY), resolve({}, None, {}))
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("--base-url", "http://[::1]:9"), "hidden"),
        (("--base-url", "http://localhost:9"), "hidden"),
        (("--base-url", "http://127.0.0.1.example:9"), None),
        (("--base-url", "http://192.0.2.1:9"), None),
        (("--base-url", "http://192.0.2.1:9", "--api-key", "given"), "given"),
    ],
)
def test_the_key_of_the_environment_stays_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    key: str | None,
) -> None:
    """Guards the key of one's own server from whoever runs another one."""
    monkeypatch.setenv("JITNEY_API_KEY", " hidden\n,another")
    assert target_of(options(*words, "--model", "m")).api_key == key
    assert ("so it is not sent to http://1" in capsys.readouterr().err) == (key is None)


def test_without_a_server_no_folder_is_left(tmp_path: Path) -> None:
    """Guards the disk: a run without a result made the folders for it."""
    (tmp_path / "kept").mkdir()
    for folder in (tmp_path / "new" / "deep", tmp_path / "kept"):
        for words in (NOBODY, NOBODY[:2]):
            found = options(*words, "--num-prompts", "1", "-o", str(folder))
            with pytest.raises(SetupError, match=r"failed|is a server running"):
                run_serve(found, resolve({}, None, {}))
    assert [each.name for each in tmp_path.rglob("*")] == ["kept"]


@pytest.mark.parametrize(("rate", "is_long"), [("0.000001", True), ("10", False), ("inf", False)])
def test_a_load_of_hours_is_announced_before_it_begins(
    rate: str, capsys: pytest.CaptureFixture[str], *, is_long: bool
) -> None:
    """Guards patience: a rate with too many zeros took weeks without a word."""
    load("--num-prompts", "3", "--request-rate", rate)
    assert ("hours; if that is too long" in capsys.readouterr().err) is is_long
