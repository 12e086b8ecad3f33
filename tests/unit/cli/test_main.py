"""Tests of `jitney.cli.main`: what starting the program loads, and that every verb has a body."""

import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from jitney.cli.flags import Verb
from jitney.cli.main import main
from jitney.cli.verbs import all_verbs

HEAVY = ("llama_cpp", "numpy", "jinja2", "llguidance", "asyncio", "rich", "jitney.api.llm")

VERBS = all_verbs()


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]], ids=" ".join)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    """Guards a quick start: help must not wait for numbers, templates or native code."""
    program = (
        "import sys\n"
        "from jitney.cli.main import main\n"
        f"assert main({words!r}) == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.path))
def test_every_verb_has_a_module(verb: Verb) -> None:
    """Guards the table of verbs: a module is found by name only when its verb is called."""
    call = getattr(importlib.import_module(verb.module), verb.call)
    assert list(inspect.signature(call).parameters) == ["options", "resolved"]


def test_a_mistake_in_a_setting_is_told_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guards a quick answer to a wrong flag."""
    assert main(["run", "--kv-tokens", "none", "--max-num-seqs", "0", "hi"]) == 2
    assert "max_num_seqs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["serve", "a.gguf", "b.gguf"], "jitney serve does not take b.gguf as well; "),
        (["serve", "--cors-origin", "app.example"], "cors_origin is 'app.example' in flag"),
        (
            ["serve", "--num-workers", "4"],
            "num_workers is '4' in flag --num-workers, and an engine",
        ),
        (["serve", "--no-enable-metrics"], "enable_metrics is False in flag --enable-metrics, and"),
        (["serve", "--policy", "none_such:A"], "none_such:A' in flag --policy, which cannot be"),
        (["serve", "--config", "{folder}"], "is a folder; name the settings file in it."),
    ],
    ids=["two models", "no origin", "workers", "no metrics", "no policy", "a folder"],
)
def test_a_mistake_is_told_in_our_own_words(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Guards newcomers: what was typed, and what to do."""
    assert main([word.format(folder=tmp_path) for word in words]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("words", [["models"], ["models", "--json"], ["models", "list", "--json"]])
def test_the_word_of_a_group_means_its_default(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Guards `jitney models`; a group without a default shows its help as before."""
    assert main([*words, "--cache-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip()
    assert main(["models", "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: jitney models COMMAND")
    assert main(["config"]) == 2
    assert capsys.readouterr().out.startswith("Usage: jitney config COMMAND")
