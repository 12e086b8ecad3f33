"""The choice by speed: both backends measured on a real model, remembered, and asked about."""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.backends_for_tests import share_verdicts, skip_reason

if reason := skip_reason("openvino") or skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.backends.kinds import kind_of
from jitney.config import Settings
from jitney.loading import select_backend, select_backend_if_known
from tests.models_for_tests import write_tiny_gguf

SAID = "Measuring which backend is faster here, once"


@dataclass(frozen=True, slots=True)
class Place:
    """A model that both backends have run here, and the file in which that is remembered."""

    settings: Settings
    memory: Path
    reason: str


def speeds(cache: Path) -> list[Path]:
    """Files that remember the speed of both backends; others remember shapes of passes."""
    return [path for path in (cache / "probes").glob("*.json") if is_of_both(path.read_bytes())]


def is_of_both(content: bytes) -> bool:
    try:
        return {"llamacpp", "openvino"} <= set(json.loads(content))
    except ValueError:
        return False


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Measured by real children."""
    folder = tmp_path_factory.mktemp("measured")
    write_tiny_gguf(folder / "tiny.gguf")
    settings = Settings(
        model=folder / "tiny.gguf", cache_dir=folder / "cache", max_num_seqs=2, threads=2
    )
    share_verdicts(settings.cache_dir)
    # Stand-ins must never be asked whether a backend works: that is known for one thread as well.
    for each in (settings, replace(settings, threads=1)):
        assert select_backend_if_known(each) is None
    assert [path.name for path in settings.cache_dir.iterdir()] == ["probes"]
    assert not speeds(settings.cache_dir)
    # One thread may want other weights, and the stand-ins cannot convert.
    kind_of("openvino").ready(folder / "tiny.gguf", replace(settings, threads=1))
    reason = select_backend(settings).reason
    [memory] = speeds(settings.cache_dir)
    return Place(settings, memory, reason)


@pytest.fixture
def place(measured: Place) -> Iterator[Place]:
    """The same; what a test leaves behind is taken away."""
    content = measured.memory.read_bytes()
    yield measured
    for memory in speeds(measured.settings.cache_dir):
        memory.unlink()
    measured.memory.write_bytes(content)


Children = Callable[[str, str], Path]
SHAPELESS = """echo '{"tokens_per_s": 1.0, "shape": null}'"""


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Children:
    """Lets shell scripts stand for the children; gives the file in which they count starts."""

    def stand_in(openvino: str, llamacpp: str) -> Path:
        log = tmp_path / "starts"
        path = tmp_path / "python"
        path.write_text(
            "#!/bin/sh\ngiven=$(cat)\n"
            # Some processors need a trial of shapes for one thread, and it is not counted.
            f"""case "$given" in *'"shapes"'*) {SHAPELESS}; exit;; esac\n"""
            # Some need a trial of llama.cpp's kernels for one thread, which measures nothing.
            """case "$given" in *'"sequences": 0'*) echo '{}'; exit;; esac\n"""
            f'echo start >> "{log}"\n'
            f"""case "$given" in *'"backend": "openvino"'*) {openvino};; *) {llamacpp};; esac\n"""
        )
        path.chmod(0o755)
        log.touch()
        monkeypatch.setattr("sys.executable", str(path))
        return log

    return stand_in


def says(speed: float) -> str:
    return f"""echo '{{"tokens_per_s": {speed}}}'"""


def test_real_children_give_figures_for_both(measured: Place) -> None:
    """Guards the way from settings through two processes to a reason with figures."""
    assert measured.reason.startswith("2 sequences: ")
    assert measured.reason.endswith("; measured on this machine")
    kept = json.loads(measured.memory.read_text())
    assert kept["model"] == str(measured.settings.model)
    for name in ("openvino", "llamacpp"):
        assert kept[name]["found"]["tokens_per_s"] > 0, kept
        assert name in measured.reason


def test_what_was_measured_is_remembered_and_known(
    place: Place, children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the second start: nothing is run and nothing is said."""
    log = children("exit 9", "exit 9")
    assert select_backend(place.settings).reason == place.reason
    assert select_backend_if_known(place.settings) == select_backend(place.settings)
    assert log.read_text() == ""
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("figures", "name"), [((160.2, 182.4), "llamacpp"), ((182.4, 160.2), "openvino")]
)
def test_the_faster_one_is_taken_and_it_is_said_once(
    place: Place,
    children: Children,
    caplog: pytest.LogCaptureFixture,
    figures: tuple[float, float],
    name: str,
) -> None:
    """Guards the decision itself, both ways."""
    place.memory.unlink()
    log = children(*map(says, figures))
    with caplog.at_level(logging.INFO, "jitney"):
        selections = [select_backend(place.settings) for _ in range(3)]
    assert {selection.name for selection in selections} == {name}
    assert f"2 sequences: {name} 182 tokens/s" in selections[0].reason
    assert " 160;" in selections[0].reason
    assert log.read_text() == "start\n" * 2
    assert caplog.messages == [SAID]


@pytest.mark.parametrize(
    "case",
    [
        ("kill -SEGV $$", "it crashed (SIGSEGV)", True),
        ("kill -KILL $$", "lack of memory", False),
        ("echo it is unwell.; exit 3", "it is unwell", False),
        ("exit 0", "without a figure", True),
    ],
)
@pytest.mark.parametrize("failing", ["openvino", "llamacpp"])
def test_one_that_fails_loses(
    place: Place,
    children: Children,
    caplog: pytest.LogCaptureFixture,
    failing: str,
    case: tuple[str, str, bool],
) -> None:
    """Guards against a crash at every start; what may pass is tried again the next time."""
    script, sentence, is_kept = case
    place.memory.unlink()
    scripts = {"openvino": says(0.1), "llamacpp": says(0.1)} | {failing: script}
    log = children(scripts["openvino"], scripts["llamacpp"])
    for _ in range(2):
        selection = select_backend(place.settings)
        assert selection.name != failing
        assert f"{failing} failed (" in selection.reason
        assert sentence in selection.reason
    assert log.read_text() == "start\n" * (2 if is_kept else 4)
    assert any(failing in message and sentence in message for message in caplog.messages)


def test_where_both_fail_openvino_is_taken_and_nothing_remembered(
    place: Place, children: Children
) -> None:
    """Guards the way to a sentence: loading it says what is wrong."""
    place.memory.unlink()
    children("kill -SEGV $$", "kill -SEGV $$")
    assert select_backend(place.settings).name == "openvino"
    assert not speeds(place.settings.cache_dir)


def test_other_threads_and_counts_are_measured_for_themselves(
    place: Place, children: Children
) -> None:
    """Guards the key: what holds for two sequences and two threads holds for nothing else."""
    log = children(says(3.0), says(4.0))
    select_backend(place.settings)
    assert log.read_text() == ""
    others = (replace(place.settings, threads=1), replace(place.settings, max_num_seqs=3))
    for number, other in enumerate(others, start=1):
        assert select_backend_if_known(other) is None
        assert "llamacpp 4.0 tokens/s" in select_backend(other).reason
        assert log.read_text() == "start\n" * 2 * number
    assert select_backend_if_known(replace(place.settings, max_num_seqs=4)) is not None


def test_one_that_cannot_be_made_ready_loses_and_is_not_remembered(
    place: Place, children: Children, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards a full disk: the model runs with the backend that needs no conversion."""
    children(says(9.0), says(4.0))
    # Converting needs a child, and the script that stands for it converts nothing.
    for folder in (place.settings.cache_dir / "converted").glob("*.openvino-*/"):
        folder.rename(folder.with_name(f"{folder.name}.away"))
    place.memory.unlink()
    try:
        assert select_backend(place.settings).name == "llamacpp"
    finally:
        for folder in (place.settings.cache_dir / "converted").glob("*.away"):
            folder.rename(folder.with_name(folder.name.removesuffix(".away")))
    assert not speeds(place.settings.cache_dir)
    assert any("openvino" in message for message in caplog.messages)


def test_more_than_a_few_sequences_are_never_measured(place: Place, children: Children) -> None:
    """Guards the default: `LLM(model)` and `jitney serve` do not wait for a measurement."""
    log = children(says(3.0), says(4.0))
    assert select_backend(replace(place.settings, max_num_seqs=16)).name == "openvino"
    assert select_backend(replace(place.settings, backend="fake")).name == "fake"
    assert log.read_text() == ""
