"""Tests of `jitney.cli.main`: what starting the program loads, and that every verb has a body."""

import importlib
import inspect
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jitney.cli.flags import Verb
from jitney.cli.main import main
from jitney.cli.verbs import all_verbs
from tests.backends_for_tests import share_verdicts

HEAVY = ("llama_cpp", "numpy", "jinja2", "llguidance", "asyncio", "rich", "jitney.api.llm")
LIBRARIES = (
    *("llama_cpp", "jitney.backends.llamacpp.bindings", "openvino", "openvino_genai"),
    *("tokenizers", "numpy", "gguf", "jinja2"),
)

VERBS = all_verbs()
WAIT_S = 120


def check_loads_none(names: tuple[str, ...], words: list[str]) -> None:
    """The command works in a new Python, and none of these modules is loaded then."""
    program = (
        "import sys\n"
        "from jitney.cli.main import main\n"
        f"assert main({words!r}) == 0\n"
        f"print([name for name in {names!r} if name in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["--version"]], ids=" ".join)
def test_help_loads_nothing_heavy(words: list[str]) -> None:
    """Guards a quick start: help must not wait for numbers, templates or native code."""
    check_loads_none(HEAVY, words)


def test_a_list_of_backends_loads_nothing_heavy(tmp_path: Path) -> None:
    """Guards a quick answer: libraries are looked for, not loaded."""
    share_verdicts(tmp_path)
    words = ["backends", "--max-num-seqs", "4", "--cache-dir", str(tmp_path)]
    check_loads_none(LIBRARIES, words)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.path))
def test_every_verb_has_a_module(verb: Verb) -> None:
    """Guards the table of verbs: a module is found by name only when its verb is called."""
    call = getattr(importlib.import_module(verb.module), verb.call)
    assert list(inspect.signature(call).parameters) == ["options", "resolved"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["run", "--kv-tokens", "none", "--max-num-seqs", "0", "hi"], "max_num_seqs is '0'"),
        (["serve", "a.gguf", "b.gguf"], "jitney serve does not take b.gguf as well; "),
        (["serve", "--cors-origin", "app.example"], "cors_origin is 'app.example' in flag"),
        (["serve", "--cache-tokens", "4"], "cache_tokens is '4' in flag --cache-tokens, and unus"),
        (["serve", "--num-workers", "0"], "num_workers is '0' in flag --num-workers; expected a"),
        (["serve", "--policy", "none_such:A"], "none_such:A' in flag --policy, which cannot be"),
        (["serve", "--config", "{folder}"], "is a folder; name the settings file in it."),
    ],
    ids=["no slot", "two models", "no origin", "cache", "no worker", "no policy", "a folder"],
)
def test_a_mistake_is_told_in_our_own_words(
    words: list[str], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Guards newcomers: what was typed, and what to do."""
    assert main([word.format(folder=tmp_path) for word in words]) == 2
    assert sentence in capsys.readouterr().err


def test_an_interrupt_ends_the_whole_command_silently(tmp_path: Path) -> None:
    """Guards Ctrl-C of `jitney plan`, as a terminal sends it: to all processes of the command."""
    cost = tmp_path / "cost.json"
    os.mkfifo(cost)
    # A pipe that nobody writes to holds the command in the middle of its work.
    ends: list[int] = []
    opener = threading.Thread(target=lambda: ends.append(os.open(cost, os.O_WRONLY)), daemon=True)
    opener.start()
    process = subprocess.Popen(
        [sys.executable, "-m", "jitney", "plan", "--cost", cost],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        opener.join(WAIT_S)
        assert ends, "The command never read the file"
        os.killpg(process.pid, signal.SIGINT)
        output, error = process.communicate(timeout=WAIT_S)
    finally:
        process.kill()
        for end in ends:
            os.close(end)
    assert (process.returncode, output, error) == (130, b"", b"")


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
