"""What `jitney bench serve` refuses before it sends anything."""

from pathlib import Path

import pytest

from jitney.cli.flags import parse
from jitney.config import resolve
from jitney.errors import ConfigError, SetupError
from jitney_lab.cli.bench_serve import run_serve
from jitney_lab.cli.serve_load_verb import SERVE_LOAD_VERB

NOBODY = ("--base-url", "http://127.0.0.1:9", "--model", "m")


def run(*words: str) -> None:
    run_serve(parse(SERVE_LOAD_VERB, list(words)).options, resolve({}, None, {}))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*NOBODY, "--host", "x"), "--host would not be used with --base-url"),
        ((*NOBODY, "--port", "80"), "--port would not be used with --base-url"),
        (("--port", "0"), "--port is 0"),
        (("--host", "http://x"), "--host is only a name"),
        (("--host", "me:hidden@x"), "--host is only a name"),
        ((*NOBODY, "--insecure"), "--insecure would not be used without https"),
        ((*NOBODY, "--backend", "tgi"), "--backend tgi is not taken here; there are openai, vllm"),
        (
            (*NOBODY, "--backend", "openai-chat", "--endpoint", "/v1/completions?key=hidden"),
            "does not go with --endpoint /v1/completions;",
        ),
        ((*NOBODY, "--backend", "openai", "--endpoint", "/v1/chat/completions"), "does not go"),
        ((*NOBODY, "--header", "hidden"), "--header has no = in it"),
        ((*NOBODY, "--header", "a=1", "--header", "b c=hidden"), "--header has a name or a value"),
        ((*NOBODY, "--api-key", "k", "--header", "Authorization=hidden"), "both set authorization"),
        ((*NOBODY, "--extra-body", "[1]"), "--extra-body is not a JSON object"),
        ((*NOBODY, "--extra-body", '{"a": NaN}'), "--extra-body is not a JSON object"),
        ((*NOBODY, "--extra-body", "{"), "--extra-body is not a JSON object"),
        ((*NOBODY, "--temperature", "nan"), "--temperature is nan"),
        ((*NOBODY, "--top-p", "inf"), "--top-p is inf"),
        ((*NOBODY, "--percentile-metrics", "ttft,speed"), "--percentile-metrics ttft,speed is not"),
        ((*NOBODY, "--metric-percentiles", "50,101"), "--metric-percentiles 50,101 is not"),
        ((*NOBODY, "--metadata", "version"), "--metadata version is not KEY=VALUE"),
        (
            (*NOBODY, "--goodput", "ttft:5", "--goodput", "speed:5"),
            "--goodput speed:5 is not METRIC:MS",
        ),
        ((*NOBODY, "--result-dir", "x"), "--result-dir would not be used without --save-result"),
    ],
)
def test_a_wrong_or_useless_flag_gets_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(*words)
    assert sentence in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_without_a_server_no_folder_is_left(tmp_path: Path) -> None:
    """Guards the disk: a run without a result made the folders for it."""
    (tmp_path / "kept").mkdir()
    for folder in (tmp_path / "new" / "deep", tmp_path / "kept"):
        saved = ("--save-result", "--result-dir", str(folder), "-o", str(folder))
        for words in (NOBODY, NOBODY[:2]):
            with pytest.raises(SetupError, match=r"failed|is a server running"):
                run(*words, "--num-prompts", "1", *saved)
    assert [each.name for each in tmp_path.rglob("*")] == ["kept"]
