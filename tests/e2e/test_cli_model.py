"""The program with real models: one written on the spot, and the embedded one.

It is called in this process; where it is interrupted, it is a program.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason
from tests.e2e.program import Done, expect_sentence, jitney

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)
models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")

WAIT_S = 280
QUIET = ("--batch-invariant", "off")
"""In one pool of memory it would be told at each start that it is off."""
LLAMACPP = ("--backend", "llamacpp", *QUIET)
ENDLESS = (*LLAMACPP, "--kv-tokens", "65536", "--max-tokens", "60000", "--greedy")
SMALL = (*LLAMACPP, "--kv-tokens", "512", "--max-num-seqs", "4")


@contextmanager
def running(*words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "jitney", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    models.write_tiny_gguf(path)
    return path


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose context is long enough that an answer does not end while a test looks."""
    path = tmp_path_factory.mktemp("models") / "endless.gguf"
    models.write_tiny_gguf(path, shape=models.TinyShape(context=65_536))
    return path


@pytest.fixture(scope="module")
def embedded() -> Path:
    done = jitney("pull")
    if done.returncode != 0:
        pytest.skip(f"the embedded model cannot be fetched: {done.stderr.strip()}")
    return Path(done.stdout.split(": ", 1)[1].rsplit(" (", 1)[0])


@pytest.fixture(scope="module")
def chat(embedded: Path) -> Done:
    """The first run: that of a new library on a machine measures, and says so."""
    assert embedded.exists()
    return jitney("chat", "--greedy", "--max-tokens", "4", stdin=b"Hello!\nSay more.\n")


def test_a_model_file_answers(tiny: Path) -> None:
    """Guards the way from a file to an answer, in process and in a process of its own."""
    given = ("run", "--model", tiny, *SMALL, "--greedy", "--json", "--max-tokens", "6")
    here, there = (jitney(*given, *more, "a", "b") for more in ((), ("--backend-process",)))
    assert here.returncode == 0, here.stderr
    answers = [json.loads(line) for line in here.stdout.splitlines()]
    assert [len(answer["tokens"]) for answer in answers] == [6, 6]
    others = [json.loads(line) for line in there.stdout.splitlines()]
    assert [answer["text"] for answer in others] == [answer["text"] for answer in answers]


@pytest.mark.parametrize("place", [(), ("--backend-process",)], ids=["here", "process"])
def test_a_bad_model_file_is_one_sentence(
    tiny: Path, tmp_path: Path, place: tuple[str, ...]
) -> None:
    """Guards against native crashes: every damaged file is refused by our own reader."""
    content = tiny.read_bytes()
    cases = {
        "text.gguf": (b"hello, I am a text\n" * 50, "not a GGUF"),
        "empty.gguf": (b"", "empty"),
        "header.gguf": (content[:30], "cut short"),
        "cut.gguf": (content[: len(content) * 2 // 3], "cut short"),
    }
    for name, (damaged, message) in cases.items():
        file = tmp_path / name
        file.write_bytes(damaged)
        expect_sentence(jitney("run", *place, "--model", file, "hi"), 1, name, message)
    expect_sentence(jitney("run", *place, "--model", tmp_path, "hi"), 1, "folder")


@pytest.mark.parametrize("place", [(), ("--backend-process",)], ids=["here", "process"])
def test_impossible_limits_are_one_sentence(tiny: Path, place: tuple[str, ...]) -> None:
    """Guards against an out-of-memory kill, and against asserts in native code."""
    given: tuple[str | Path, ...] = ("run", *LLAMACPP, *place, "--model", tiny)
    expect_sentence(jitney(*given, "--kv-tokens", "2000000000", "hi"), 1, "kv_tokens", "memory")
    done = jitney(*given, "--kv-tokens", "10", "a prompt that is longer than ten tokens")
    assert done.returncode in (1, 2)
    expect_sentence(done, done.returncode)
    long = "word " * 400
    expect_sentence(jitney(*given, long), 1, "512 tokens of the context")
    expect_sentence(jitney(*given, "--max-model-len", "4096", "hi"), 2, "max_model_len")


def test_equal_texts_in_too_little_memory_are_refused_with_what_they_need(tiny: Path) -> None:
    """Guards `--batch-invariant on`: never silently off, and the figure that is named is enough."""
    given = ("run", "--backend", "llamacpp", "--model", tiny, "--max-num-seqs", "4")
    asked = ("--batch-invariant", "on", "--max-tokens", "4")
    done = jitney(*given, *asked, "--kv-tokens", "512", "hi")
    expect_sentence(done, done.returncode, "batch_invariant is on", "kv_tokens of ")
    tokens = done.stderr.split("kv_tokens of ")[1].split()[0]
    assert jitney(*given, *asked, "--kv-tokens", tokens, "hi").returncode == 0


@pytest.mark.parametrize(
    ("end", "code", "sentence"),
    [
        (signal.SIGINT, 130, b""),
        (signal.SIGTERM, -signal.SIGTERM, b"jitney: SIGTERM ended it before it was done.\n"),
        (None, 141, b""),
    ],
    ids=["Ctrl-C", "SIGTERM", "no reader"],
)
def test_a_run_that_is_ended_says_no_more_than_it_must(
    endless: Path, end: signal.Signals | None, code: int, sentence: bytes
) -> None:
    """Guards Ctrl-C, half an answer in a file, and `jitney run ... | head`: the usual code, no
    traceback, and no waiting for the rest of the answer."""
    with running("run", "--model", endless, *ENDLESS, "hi") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        if end is None:
            process.stdout.close()
        else:
            process.send_signal(end)
        assert process.wait(WAIT_S) == code
        assert process.stderr.read() == sentence
        process.stdout = None if end is None else process.stdout


def test_an_interrupt_ends_an_answer_and_not_the_chat(endless: Path) -> None:
    """Guards Ctrl-C in a chat: the answer stops, and the next question is answered."""
    with running("chat", "--model", endless, *ENDLESS) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        message = _read_until(process, b"Stopped")
        process.stdin.write(b"/stats\n")
        process.stdin.flush()
        message += _read_until(process, b"busy")
        process.stdin.close()
        assert process.wait(WAIT_S) == 0
        process.stdin = None
    assert b"1 stopped" in message
    assert b"Traceback" not in message


def _read_until(process: subprocess.Popen[bytes], mark: bytes) -> bytes:
    assert process.stderr is not None
    message = b""
    while mark not in message:
        line = process.stderr.readline()
        assert line, message
        message += line
    return message


@pytest.mark.usefixtures("chat")
def test_the_embedded_model_answers_and_is_pulled_once(embedded: Path) -> None:
    """Guards the first minute: `jitney run` without a model, quiet when the model is there."""
    assert embedded.exists()
    again = jitney("pull")
    assert again.returncode == 0
    assert again.stderr == ""
    assert str(embedded) in again.stdout
    start = "The capital of France is the city of"
    done = jitney("run", "--raw", "--greedy", "--max-tokens", "8", start)
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert done.stderr == ""


def test_the_embedded_model_chats(chat: Done) -> None:
    """Guards history with a real template: a follow-up is computed on top of what is cached."""
    assert chat.returncode == 0, chat.stderr
    figures = [line for line in chat.stderr.splitlines() if " cached" in line]
    cached = [int(line.split(" cached")[0].split(" · ")[-1]) for line in figures]
    assert len(cached) == 2
    assert cached[1] > cached[0]


def test_a_failed_fetch_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards machines without a network: the package, the reason, and what else to do."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    nowhere |= {"PIP_RETRIES": "0", "PIP_NO_INDEX": "1", "JITNEY_CACHE": str(tmp_path)}
    done = jitney("pull", environ=nowhere)
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("jitney: ")
    assert "--model" in last
    assert "Traceback" not in done.stderr
