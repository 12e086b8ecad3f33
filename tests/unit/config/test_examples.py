"""Every file in `examples/` is read by the command line and by Python, and runs."""

import json
from pathlib import Path

import pytest

from jitney import LLM, SamplingParams
from jitney.cli.main import main
from jitney.core.scheduler_settings import Mix, Policy, Strategy
from jitney.errors import ConfigError

FOLDER = Path(__file__).parents[3] / "examples"
FILES = sorted(FOLDER.glob("*.yaml"))
EXPECTED: dict[str, dict[str, object]] = {
    "llamacppex-adr-005": {
        "gpu_layers": -1,
        "kv_tokens": 8192,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
        "max_wait_ms": 20.0,
        "max_per_sequence": "even",
    },
    "llamacppex-adr-006": {
        "prefill_chunk": 512,
        "max_num_queued_reqs": 100,
        "mix": Mix.DECODE_FIRST,
    },
    "minigpt-course": {"max_num_seqs": 16, "strategy": Strategy.CONTINUOUS},
    "themisdb": {
        "kv_tokens": 131_072,
        "max_model_len": 4096,
        "policy": Policy.PRIORITY,
        "max_wait_ms": 50.0,
    },
    "zigllama": {
        "strategy": Strategy.DYNAMIC,
        "policy": Policy.FIFO,
        "max_num_queued_reqs": 1000,
        "max_wait_ms": 100.0,
    },
}


def stem(file: Path) -> str:
    return file.stem


def test_there_is_a_file_for_each_document() -> None:
    """Guards the folder: a file more or less would not be tested below."""
    assert [file.stem for file in FILES] == sorted(EXPECTED)


@pytest.mark.parametrize("file", FILES, ids=stem)
def test_an_example_runs_from_python(file: Path) -> None:
    """Guards `LLM(config=...)`: what the file says is in force, and the engine generates."""
    with LLM(config=file, backend="fake") as llm:
        found = {name: getattr(llm.settings, name) for name in EXPECTED[file.stem]}
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        outputs = llm.generate(["one", "two"], params, use_tqdm=False)
    assert found == EXPECTED[file.stem]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 3]


@pytest.mark.parametrize("file", FILES, ids=stem)
def test_an_example_is_shown_by_the_command_line(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards `--config`: both ways of reading a file have the same in force."""
    words = ["config", "show", "--config", str(file), "--backend", "fake"]
    assert main([*words, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {name: shown[name]["value"] for name in EXPECTED[file.stem]} == EXPECTED[file.stem]
    assert main(words) == 0
    assert str(file) in capsys.readouterr().out
    assert str(file.relative_to(FOLDER.parent)) in file.read_text()


def test_arguments_are_stronger_than_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the order of sources in Python: file, environment, arguments."""
    file = tmp_path / "a.yaml"
    file.write_text("max_num_seqs: 2\nseed: 3\nkv_tokens: 512\nport: 9000\n")
    monkeypatch.setenv("JITNEY_SEED", "4")
    with LLM(config=str(file), backend="fake", max_num_seqs=5) as llm:
        settings = llm.settings
    assert (settings.max_num_seqs, settings.seed, settings.kv_tokens) == (5, 4, 512)
    with pytest.raises(ConfigError, match="There is no settings file"):
        LLM(config=tmp_path / "none.yaml", backend="fake")
