"""`jitney batch run` as people run it: results, errors, interruptions, and what is refused."""

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jitney.cli import batch_run
from jitney.config import Settings
from jitney.core.limits import FAILURES_MAX
from jitney.loading.compose import Assembly, assemble
from jitney.server.batches.database import PENDING
from tests.deadly_text import DEADLY, deadly_text
from tests.e2e.batches.batch_client import CHAT, custom_ids, jsonl, line
from tests.e2e.program import Done, expect_sentence, jitney
from tests.e2e.server.harness import wait_until

# What runs in this process has no other limit.
pytestmark = pytest.mark.timeout(240)
RUN_S = 120.0
LINES = 100
TRIES = 5
"""What must happen in the middle of a run is tried again where a busy machine came too late."""
WORDS = ("batch", "run", "--backend", "fake")
WORK = [line(f"c{n}", max_tokens=200, ignore_eos=True) for n in range(LINES)]


def run(folder: Path, *words: str, output: str = "out.jsonl") -> Done:
    """The command in this process; where it is killed or interrupted, it is a program: `begun`."""
    with contextlib.chdir(folder):
        return jitney(*WORDS, "in.jsonl", "-o", output, *words)


def rows(path: Path) -> list[dict[str, object]]:
    return [json.loads(each) for each in path.read_text().splitlines()]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("words", [(), ("--strategy", "static")], ids=" ".join)
def test_every_line_is_answered_and_nothing_else_is_left(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Guards the simplest use: both endpoints in one file, in order, and no other file. Under
    static, the last lines fill no group."""
    work = [line(f"c{n}", CHAT if n % 2 else "/v1/completions") for n in range(30)]
    (tmp_path / "in.jsonl").write_bytes(jsonl(work))
    done = run(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "30 lines: 30 answered in out.jsonl\n"
    assert custom_ids(rows(tmp_path / "out.jsonl")) == [each["custom_id"] for each in work]
    assert names(tmp_path) == {"in.jsonl", "out.jsonl", "out.jsonl.done"}


def test_a_run_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    """Guards whoever repeats a command until it succeeds, and a file that is something else."""
    (tmp_path / "in.jsonl").write_bytes(jsonl([line("a"), line("b")]))
    assert run(tmp_path).returncode == 0
    first = (tmp_path / "out.jsonl").read_bytes()
    left_over = tmp_path / "out.jsonl.jobs.done"
    # As a kill leaves it: before the folder was removed, in the middle of that, and after it.
    for is_left, names_left in ((True, ("jobs.sqlite", "lock")), (True, ()), (False, ())):
        if is_left:
            left_over.mkdir()
        for name in names_left:
            (left_over / name).write_bytes(b"x")
        done = run(tmp_path)
        assert (done.returncode, done.stdout) == (0, "2 lines: 2 answered in out.jsonl\n")
        assert "All of it was done by an earlier run" in done.stderr
        assert names(tmp_path) == {"in.jsonl", "out.jsonl", "out.jsonl.done"}
        assert (tmp_path / "out.jsonl").read_bytes() == first
    # Half of a folder, as an earlier version left it, is no run to go on with.
    (tmp_path / "out.jsonl.jobs").mkdir()
    assert run(tmp_path).returncode == 0
    assert (tmp_path / "out.jsonl").read_bytes() == first
    # The same ids are not the same questions.
    (tmp_path / "in.jsonl").write_bytes(jsonl([line("a"), line("b", prompt="another")]))
    expect_sentence(run(tmp_path), 2, "out.jsonl is there already")
    assert (tmp_path / "out.jsonl").read_bytes() == first
    # Nor is a file the result because one was there.
    (tmp_path / "in.jsonl").write_bytes(jsonl([line("a"), line("b")]))
    (tmp_path / "out.jsonl").write_text("mine")
    expect_sentence(run(tmp_path), 2, "out.jsonl is there already")
    assert (tmp_path / "out.jsonl").read_text() == "mine"
    (tmp_path / "out.jsonl").unlink()
    (tmp_path / "out.jsonl").hardlink_to(tmp_path / "in.jsonl")
    expect_sentence(run(tmp_path), 2, "out.jsonl is the input; give another --output")


def test_what_looks_like_a_folder_of_ours_is_not_removed(tmp_path: Path) -> None:
    """Guards a thesis in a folder that has an unlucky name."""
    (tmp_path / "in.jsonl").write_bytes(jsonl([line("a")]))
    thesis = tmp_path / "out.jsonl.jobs.done" / "files" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("mine")
    assert "Directory not empty" in run(tmp_path).stderr
    assert thesis.read_text() == "mine"


def test_a_small_input_that_is_edited_is_not_answered(tmp_path: Path) -> None:
    """Guards files that a buffer holds whole: what is compared must be what is on the disk."""
    work = [line(f"c{n}", prompt="question", max_tokens=150, ignore_eos=True) for n in range(40)]
    content = jsonl(work)
    edited = content.replace(b"question", b"QUESTION")
    folder, done = changed_meanwhile(tmp_path, work, edited, "--max-num-seqs", "1")
    assert done.returncode == 1, done.stderr
    assert "was edited while its lines were answered" in done.stderr.splitlines()[-1]
    (folder / "in.jsonl").write_bytes(content)
    assert run(folder).returncode == 0
    found: list[Any] = rows(folder / "out.jsonl")
    texts = {each["response"]["body"]["choices"][0]["text"] for each in found}
    assert len(texts) == 1, "all lines ask the same"


@pytest.mark.parametrize("is_renamed", [True, False])
def test_an_input_that_changes_meanwhile(tmp_path: Path, *, is_renamed: bool) -> None:
    """Guards answers against the id of another line: with another file of the same name the lines
    are those of the start, and an edit in place ends the run."""
    # A length of its own for each line tells the answers apart.
    work = [line(f"c{n:04}", max_tokens=100 + n % 100, ignore_eos=True) for n in range(LINES)]
    folder, process = changed_meanwhile(tmp_path, work, jsonl(work[::-1]), is_renamed=is_renamed)
    if not is_renamed:
        assert process.returncode == 1, process.stderr
        assert "Traceback" not in process.stderr
        assert "was edited while its lines were answered" in process.stderr.splitlines()[-1]
        assert "out.jsonl" not in names(folder)
        expect_sentence(run(folder), 2, "another input")
        (folder / "in.jsonl").write_bytes(jsonl(work))
        process = run(folder)
    assert process.returncode == 0, process.stderr
    found: list[Any] = rows(folder / "out.jsonl")
    counts = [each["response"]["body"]["usage"]["completion_tokens"] for each in found]
    assert custom_ids(found) == [each["custom_id"] for each in work]
    assert counts == [each["body"]["max_tokens"] for each in work]


def changed_meanwhile(
    tmp_path: Path, work: list[Any], content: bytes, *flags: str, is_renamed: bool = False
) -> tuple[Path, Done]:
    """A run whose input had this content from some moment on, and its folder."""

    def change(folder: Path) -> bool:
        if is_renamed:
            (folder / "new").write_bytes(content)
            (folder / "new").replace(folder / "in.jsonl")
        else:
            with (folder / "in.jsonl").open("r+b") as file:
                file.write(content)
        return (folder / "out.jsonl.jobs").exists() and not (folder / "out.jsonl").exists()

    return disturbed(tmp_path, work, change, *flags)


def disturbed(
    tmp_path: Path,
    work: list[Any],
    disturb: Callable[[Path], bool],
    *flags: str,
) -> tuple[Path, Done]:
    """A run of these lines that was disturbed when it had answered a line, and its folder.

    One that was over before that is tried again: `disturb` tells.
    """
    for folder in filled(tmp_path, work):
        is_over = threading.Event()

        def wait_and_disturb(place: Path = folder, is_over: threading.Event = is_over) -> bool:
            wait_until(lambda: has_answers(place) or is_over.is_set(), "it does not begin", RUN_S)
            return disturb(place)

        with ThreadPoolExecutor() as pool:
            is_in_time = pool.submit(wait_and_disturb)
            try:
                done = run(folder, *flags)
            finally:
                is_over.set()
        if is_in_time.result():
            return folder, done
    pytest.fail("each run was over before it was disturbed")


def filled(tmp_path: Path, work: list[Any]) -> Iterator[Path]:
    """Folders with these lines, one for each try."""
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (folder / "in.jsonl").write_bytes(jsonl(work))
        yield folder


def test_failed_lines_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    """Guards scripts: the exit code says that some failed, and the file says why.

    And `strict` in a file: a line with a field without an effect was answered.
    """
    work = [line("a"), b"{oops", line("b", stream=True), line("c"), line("d", keep_alive="5m")]
    (tmp_path / "in.jsonl").write_bytes(jsonl(work))
    (tmp_path / "strict.yaml").write_text("strict: true")
    done = run(tmp_path, "--config", "strict.yaml")
    assert done.returncode == 1
    assert done.stdout == "5 lines: 2 answered in out.jsonl, 3 failed in out.errors.jsonl\n"
    assert custom_ids(rows(tmp_path / "out.jsonl")) == ["a", "c"]
    assert custom_ids(rows(tmp_path / "out.errors.jsonl")) == [None, "b", "d"]


def begun(folder: Path, *flags: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "jitney", *WORDS, "in.jsonl", "-o", "out.jsonl", *flags],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def has_answers(folder: Path) -> bool:
    """Whether the run in this folder has answered a line and goes on; its store goes with it."""
    jobs = folder / "out.jsonl.jobs"
    if not (jobs / "jobs.sqlite-wal").exists():
        # Before it has one, a reader would hold up the start of the store.
        return False
    store = f"file:{jobs / 'jobs.sqlite'}?mode=ro"
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(store, uri=True)) as found,
    ):
        query = f"SELECT 1 FROM lines WHERE state != {PENDING} LIMIT 1"
        return found.execute(query).fetchone() is not None
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_cut_short_goes_on_where_it_was(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Guards long runs: the same command again, and each line is in the output once."""
    folder, log = cut_short(tmp_path, number)
    if number == signal.SIGINT:
        assert "The same command goes on from there" in log
    assert "out.jsonl" not in names(folder)
    # What somebody put there between the two is not overwritten.
    (folder / "out.jsonl").write_text("mine")
    expect_sentence(run(folder), 2, "is not of this run")
    assert (folder / "out.jsonl").read_text() == "mine"
    (folder / "out.jsonl").unlink()
    done = run(folder)
    assert done.returncode == 0, done.stderr
    assert "Going on with an earlier run" in done.stderr
    assert custom_ids(rows(folder / "out.jsonl")) == [each["custom_id"] for each in WORK]
    assert names(folder) == {"in.jsonl", "out.jsonl", "out.jsonl.done"}


def cut_short(tmp_path: Path, number: signal.Signals) -> tuple[Path, str]:
    """The folder of a run that was ended by this signal, and its log."""

    for folder in filled(tmp_path, WORK):
        with begun(folder) as process:
            wait_until(
                lambda place=folder, running=process: (  # type: ignore[misc]
                    has_answers(place) or running.poll() is not None
                ),
                "it does not begin",
                RUN_S,
            )
            process.send_signal(number)
            _, log = process.communicate(timeout=RUN_S)
        if process.returncode != 0:
            break
    assert process.returncode == (130 if number == signal.SIGINT else -number), log
    return folder, log


def test_results_that_cannot_be_delivered_are_kept(tmp_path: Path) -> None:
    """Guards a night of work against a name that is taken meanwhile: the next run delivers it."""
    folder, log = delivered_in_vain(tmp_path)
    assert log.count("\n") == 1, log
    assert "out.errors.jsonl: File exists" in log
    assert "they stay in out.jsonl.jobs, and the same command goes on from there" in log
    errors = folder / "out.errors.jsonl"
    errors.rmdir()
    done = run(folder)
    assert done.returncode == 1, done.stderr
    assert f"an earlier run, which has {LINES + 1} of {LINES + 1} lines done" in done.stderr
    assert custom_ids(rows(folder / "out.jsonl")) == [each["custom_id"] for each in WORK]
    assert custom_ids(rows(errors)) == [None]
    assert names(folder) == {"in.jsonl", "out.jsonl", "out.errors.jsonl", "out.jsonl.done"}


def delivered_in_vain(tmp_path: Path) -> tuple[Path, str]:
    """The folder of a run that found a folder where its errors belong, and its log."""

    def take_name(folder: Path) -> bool:
        # The output is delivered before it, so half of the results are in place.
        with contextlib.suppress(FileExistsError):
            (folder / "out.errors.jsonl").mkdir()
        return (folder / "out.errors.jsonl").is_dir()

    folder, done = disturbed(tmp_path, [*WORK, b"{oops"], take_name)
    assert done.returncode == 1, done.stderr
    return folder, done.stderr


def test_another_input_or_model_does_not_go_on(tmp_path: Path) -> None:
    """Guards results against a mix of two runs."""
    # So many that it goes on until it is killed.
    work = [line(f"c{n}", max_tokens=200, ignore_eos=True) for n in range(2000)]
    (tmp_path / "in.jsonl").write_bytes(jsonl(work))
    with begun(tmp_path) as process:
        wait_until(lambda: has_answers(tmp_path), "it does not begin", RUN_S)
        expect_sentence(run(tmp_path), 2, "Another process answers into out.jsonl")
        process.kill()
    other = tmp_path / "other.gguf"
    other.write_bytes(b"not read before the refusal")
    expect_sentence(run(tmp_path, "--backend", "llamacpp", "--model", str(other)), 2, "the model")
    (tmp_path / "in.jsonl").write_bytes(jsonl(work[1:]))
    expect_sentence(run(tmp_path), 2, "another input")


def test_what_cannot_be_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """Guards the first try: no traceback, and no folder that is left behind."""
    expect_sentence(run(tmp_path), 2, "There is no file in.jsonl")
    (tmp_path / "in.jsonl").write_text("\n\n")
    expect_sentence(run(tmp_path, output="nowhere/out.jsonl"), 2, "There is no folder nowhere")
    expect_sentence(run(tmp_path), 2, "no line with a request")
    expect_sentence(run(tmp_path, output="x" * 240), 2, "longer than 230 bytes")
    for folder in ("", ".", "/"):
        expect_sentence(
            run(tmp_path, output=folder), 2, f"The output is the folder {folder or '.'};"
        )
    with contextlib.chdir(tmp_path):
        expect_sentence(jitney(*WORDS, "."), 2, "The input is the folder .;")
        expect_sentence(jitney(*WORDS, ""), 2, "There is no input")
    expect_sentence(run(tmp_path, output="-"), 2, "only a file can be gone on with")
    expect_sentence(run(tmp_path, output=".."), 2, "name a file")
    assert names(tmp_path) == {"in.jsonl"}
    expect_sentence(jitney(*WORDS), 2, "There is no input")


def test_a_store_that_is_removed_ends_the_run_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards whoever cleans up while the model loads: a new store had nothing of the run in it."""
    (tmp_path / "in.jsonl").write_bytes(jsonl([line("a"), line("b")]))

    def remove_and_load(settings: Settings) -> Assembly:
        shutil.rmtree(tmp_path / "out.jsonl.jobs")
        return assemble(settings)

    monkeypatch.setattr(batch_run, "assemble", remove_and_load)
    expect_sentence(run(tmp_path), 1, "out.jsonl.jobs was removed")
    monkeypatch.undo()
    assert run(tmp_path).returncode == 0
    assert len(rows(tmp_path / "out.jsonl")) == 2


def test_the_help_has_an_example() -> None:
    """Guards the first minute."""
    for words in (("batch",), ("batch", "run")):
        assert "jitney batch run in.jsonl -o out.jsonl" in jitney(*words, "--help").stdout


def test_a_line_that_kills_the_tokenizer_fails_alone(tmp_path: Path) -> None:
    """Guards a run against one text: it would end the run, and each that goes on with it."""
    (tmp_path / "in.jsonl").write_bytes(jsonl([line("a"), line("b", prompt=DEADLY), line("c")]))
    with deadly_text(tmp_path / "custom") as deaths:
        done = run(tmp_path)
    assert done.returncode == 1, done.stderr
    assert deaths.count == FAILURES_MAX
    assert custom_ids(rows(tmp_path / "out.jsonl")) == ["a", "c"]
    assert custom_ids(rows(tmp_path / "out.errors.jsonl")) == ["b"]
