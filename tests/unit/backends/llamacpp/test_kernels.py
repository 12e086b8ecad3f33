"""The trial run: good models are remembered, every kind of death is a sentence."""

import json
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.kind import Values
from jitney.backends.llamacpp import attention, kernels, library
from jitney.backends.llamacpp.kind import KIND
from jitney.backends.trials.trial import forget
from jitney.config import Settings
from jitney.errors import ModelError, NoRoom
from jitney.models.files import locked
from tests.models_for_tests import write_tiny_gguf

FakeChild = Callable[[str], Path]
ILLEGAL = """case "$given" in *'"extra_kernels": false'*) exit 0;; *) kill -ILL $$;; esac"""
"""Only a child without the fastest kernels lives."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def fake_child(tmp_path: Path, stand_in_python: Callable[[str], None]) -> FakeChild:
    """Lets a shell script stand for the child; gives the file in which it counts its starts."""

    def fake(script: str) -> Path:
        log = tmp_path / "starts"
        stand_in_python(f'echo start >> "{log}"\ngiven=$(cat)\n{script}')
        return log

    return fake


def usable(model: Path, cache: Path, kv_type: str = "float16") -> bool:
    """Whether its fastest kernels run here."""
    values: Values = {"model": str(model), "gpu_layers": 0, "flash_attention": True, "threads": 2}
    values["kv_type"] = kv_type
    return kernels.are_usable(values, cache, KIND.distributions())


def test_a_good_model_runs_in_the_child(cache: Path, model: Path) -> None:
    """The trial really loads and computes."""
    assert usable(model, cache)


def test_the_answer_is_remembered(
    fake_child: FakeChild,
    cache: Path,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One trial for each model, not one for each start; another one when the file changes.

    One of a large model is announced.
    """
    log = fake_child("exit 0")
    for _ in range(3):
        assert usable(model, cache)
    assert log.read_text() == "start\n"
    assert not caplog.text
    monkeypatch.setattr(kernels, "NOTICE_BYTES", 0)
    write_tiny_gguf(model, seed=2)
    for _ in range(2):
        usable(model, cache)
    assert log.read_text() == "start\n" * 2
    assert caplog.text.count(kernels.NOTICE) == 1


def test_a_trial_has_the_attention_and_the_threads_of_the_settings(
    fake_child: FakeChild, cache: Path, model: Path
) -> None:
    """Guards a GPU on which only the fused kernel crashes: without it the model is served."""
    fake_child(
        """case "$given" in *'"flash_attention": true'*) kill -SEGV $$;; """
        """*'"threads": 3'*) exit 0;; *) exit 9;; esac"""
    )
    settings = Settings(model=model, cache_dir=cache, threads=3, flash_attention="off")
    assert KIND.values(settings, model)["extra_kernels"]
    with pytest.raises(ModelError, match="SIGSEGV"):
        KIND.values(replace(settings, flash_attention="on"), model)


def test_a_trial_holds_for_its_numbers_of_keys_and_values(
    fake_child: FakeChild, cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards equal texts and crashes: what was seen with 16 bits says nothing of 8."""
    log = fake_child("""echo '{"shape": null, "tokens_per_s": 1, "is_rewindable": true}'""")
    monkeypatch.setattr(attention, "PARAMETERS_MIN", 0)
    settings = Settings(model=model, cache_dir=cache, flash_attention="on", max_model_len=256)
    for kv_type in ("auto", "float16", "q8_0", "q8_0"):
        found = KIND.values(replace(settings, kv_cache_dtype=kv_type), model)
        assert found["kv_type"] == ("q8_0" if kv_type == "q8_0" else "float16")
    # Each twice: whether it runs, and which shape is exact; and once whether slots can be cut back.
    assert log.read_text() == "start\n" * 5


def test_a_trial_of_one_model_does_not_wait_for_that_of_another(
    fake_child: FakeChild, cache: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a start against the minutes that another model takes."""
    fake_child("exit 0")
    monkeypatch.setattr("jitney.models.files.LOCK_WAIT_S", 0.2)
    probes = cache / "probes"
    usable(model, cache)
    (first,) = probes.glob("*.lock")
    write_tiny_gguf(model, seed=2)
    with locked(first):
        assert usable(model, cache)
    model.unlink()
    forget(cache)
    assert not list(probes.iterdir())


def test_an_illegal_instruction_turns_kernels_off(
    fake_child: FakeChild, cache: Path, model: Path
) -> None:
    """A badly compiled library still serves, slower, and says how to rebuild it."""
    log = fake_child(ILLEGAL)
    for _ in range(2):
        assert not usable(model, cache)
    assert log.read_text() == "start\n" * 2


def test_that_kernels_are_off_is_said_with_what_to_do(
    fake_child: FakeChild, cache: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards people against a slow server that does not say why."""
    fake_child(ILLEGAL)
    settings = Settings(model=model, cache_dir=cache)
    assert KIND.values(settings, model)["extra_kernels"] is False
    assert "clang" in caplog.text


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -SEGV $$", "SIGSEGV"),
        ("kill -ABRT $$", "SIGABRT"),
        ("kill -ILL $$", "SIGILL"),
        ("exit 7", "status 7; the model is probably not the cause"),
        ("echo No module named numpy >&2; exit 1", "No module named numpy; the model is prob"),
        ("echo the model is unwell.; exit 3", "the model is unwell"),
    ],
)
def test_every_death_is_a_sentence(
    fake_child: FakeChild, cache: Path, model: Path, script: str, message: str
) -> None:
    """A crash in the child must never become one here, nor be remembered as success."""
    fake_child(script)
    with pytest.raises(ModelError, match=message):
        usable(model, cache)
    for file in cache.rglob("*.json"):
        assert json.loads(file.read_text())["extra_kernels"]["failure"]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("kill -KILL $$", "lack of memory; take a smaller model"),
        ("echo the weights do not fit.; exit 4", "the weights do not fit"),
    ],
)
def test_too_little_memory_is_not_the_fault_of_the_model(
    fake_child: FakeChild, cache: Path, model: Path, script: str, message: str
) -> None:
    """Guards whoever tries again with more memory: NoRoom is for these, as without a process."""
    fake_child(script)
    with pytest.raises(NoRoom, match=message):
        usable(model, cache)


@pytest.mark.parametrize(
    ("gpu", "signal", "advice"),
    [
        ("cuda", "ABRT", "for cuda, and probably does not work with this GPU or its driver"),
        ("metal", "SEGV", "it does not work with this GPU or its driver, or a file is damaged"),
        ("cuda", "KILL", "for lack of memory"),
        ("cpu-x64", "ABRT", "it crashed"),
    ],
)
def test_a_library_for_a_gpu_that_crashes_is_not_called_a_damaged_model(
    fake_child: FakeChild,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    gpu: str,
    signal: str,
    advice: str,
) -> None:
    """Guards a GPU that the library was not built for: it loads, and dies in its first kernel.

    Lack of memory is not the GPU's fault. On a Mac the usual library has the GPU, so adding that
    again would not help.
    """
    folder, cache = model.parent / "lib", model.parent / "cache"
    folder.mkdir()
    (folder / f"libggml-{gpu}.so").write_text("")
    machine = ("Darwin", "arm64") if gpu == "metal" else ("Linux", "x86_64")
    for name, value in zip(("system", "machine"), machine, strict=True):
        monkeypatch.setattr(platform, name, lambda value=value: value)
    monkeypatch.setattr(library, "find", lambda: library.LlamaPackage("jitney_llama", folder))
    fake_child(f"kill -{signal} $$")
    with pytest.raises(ModelError) as caught:
        usable(model, cache)
    for text in (str(caught.value), KIND.failure(Settings(cache_dir=cache)) or ""):
        assert advice in text
        assert ("built for" in text) == ("GPU" in advice)
        assert ("--add" in text) == ("probably" in advice)
    assert ("the file is damaged" in str(caught.value)) == (gpu == "cpu-x64")


def test_a_truncated_model_is_refused_by_the_real_child(cache: Path, model: Path) -> None:
    """The sentence of the child arrives here."""
    model.write_bytes(model.read_bytes()[:20_000])
    with pytest.raises(ModelError, match="damaged header"):
        usable(model, cache)


def test_weights_that_are_not_numbers_are_refused(cache: Path, model: Path) -> None:
    """Such a model loads, and fails at every token."""
    content = model.read_bytes()
    model.write_bytes(content[:-20_000] + b"\xff" * 20_000)
    with pytest.raises(ModelError, match="weights are damaged"):
        usable(model, cache)
