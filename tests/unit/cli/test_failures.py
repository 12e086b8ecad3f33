"""Tests of `jitney.cli.failures`: one sentence and an exit code for everything."""

import pytest

from jitney.cli.failures import FAILED, INTERRUPTED, USAGE, report, say, sentence_of
from jitney.errors import (
    BackendCrashed,
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    JitneyError,
    ModelError,
)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ConfigError("no such thing."), USAGE, "jitney: no such thing.\n"),
        (InvalidRequest("bad value", "x"), USAGE, "jitney: bad value.\n"),
        (ContextLengthExceeded("too long."), FAILED, "jitney: too long.\n"),
        (ModelError("two\nlines  of it."), FAILED, "jitney: two lines of it.\n"),
        (BackendCrashed("gone."), FAILED, "jitney: gone.\n"),
        (FileNotFoundError(2, "No such file", "x.gguf"), FAILED, "jitney: x.gguf: No such file.\n"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else None,
)
def test_a_failure_is_one_line_and_a_code(
    error: BaseException, code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards people against tracebacks, and scripts against a wrong exit code."""
    assert report(error, debug=False) == code
    assert capsys.readouterr().err == message


def test_what_is_unexpected_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards bug reports: the traceback is one flag away."""
    error = ZeroDivisionError("division by zero")
    assert report(error, debug=False) == FAILED
    short = capsys.readouterr().err
    assert short.count("\n") == 1
    assert "--debug" in short
    assert "Traceback" not in short
    assert report(error, debug=True) == FAILED
    assert "ZeroDivisionError" in capsys.readouterr().err.splitlines()[-1]


def test_a_vast_message_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards the terminal: an error may quote what a stranger wrote."""
    say("x" * 100_000)
    assert len(capsys.readouterr().err) < 3000


def test_an_error_without_words_still_says_something() -> None:
    """Guards against an empty line."""
    assert sentence_of(JitneyError()) == "JitneyError."


def test_only_a_foreign_package_is_told_as_a_missing_extra(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guards against the advice to install what is installed, when a module of ours is lost."""
    assert report(ModuleNotFoundError("x", name="httpx.sub"), debug=False) == FAILED
    assert "needs the package httpx.sub" in capsys.readouterr().err
    assert report(ModuleNotFoundError("x", name="jitney_lab.bench.lost"), debug=False) == FAILED
    assert "Something unexpected happened" in capsys.readouterr().err
