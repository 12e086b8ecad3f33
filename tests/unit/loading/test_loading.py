"""From settings to a backend: what is refused before anything heavy is done."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.backends.kinds import kind_of
from jitney.config import Settings
from jitney.errors import ConfigError, MissingDependency, ModelError, SetupError
from jitney.loading import check_settings, load_backend, select_backend, select_backend_if_known
from jitney.loading.model_source import check_known
from tests.children_for_tests import MODULES, install, refuses, stand_in
from tests.models_for_tests import TinyShape, write_tiny_gguf

NO_ATTENTION = "it has no attention"
UNWELL = "it is unwell"


def refused(
    tmp_path: Path, kinds: type[SetupError] | tuple[type[SetupError], ...], **given: Any
) -> str:
    """The sentence."""
    with pytest.raises(kinds) as caught:
        load_backend(Settings(cache_dir=tmp_path / "cache", **given))
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def refused_at_once(tmp_path: Path, **given: Any) -> str:
    """The sentence; nothing was written to the cache, so that nothing was tried."""
    sentence = refused(tmp_path, (ConfigError, ModelError), **given)
    assert not (tmp_path / "cache").exists()
    return sentence


def exported(tmp_path: Path) -> Path:
    """What is taken for an exported folder."""
    folder = tmp_path / "exported"
    folder.mkdir()
    for name in ("openvino_model.xml", "openvino_model.bin"):
        (folder / name).touch()
    return folder


@pytest.mark.parametrize(
    ("backend", "setting", "value"),
    [
        ("llamacpp", "dtype", "float32"),
        ("llamacpp", "kv_cache_dtype", "uint8"),
        ("openvino", "kv_cache_dtype", "q8_0"),
        ("openvino", "dtype", "float16"),
        ("openvino", "kv_cache_dtype", "fp8"),
        ("torch", "kv_cache_dtype", "q8_0"),
        ("fake", "dtype", "float32"),
        ("fake", "kv_cache_dtype", "uint8"),
        ("fake", "flash_attention", "on"),
        ("llamacpp", "quantization", "fp8"),
        ("openvino", "quantization", "fp8"),
        ("openvino", "gpu_layers", 3),
        ("openvino", "flash_attention", "off"),
    ],
)
def test_settings_of_other_backends_are_refused(
    tmp_path: Path, backend: str, setting: str, value: object
) -> None:
    """Guards against a setting that is taken and ignored."""
    sentence = refused_at_once(tmp_path, backend=backend, **{setting: value})
    assert sentence.startswith(f"{setting} is given, and the {backend} backend")


@pytest.mark.parametrize(
    ("value", "owner"), [("q8_0", "llamacpp"), ("uint8", "openvino"), ("float16", "openvino")]
)
def test_a_value_that_one_backend_has_decides_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: Any, owner: str
) -> None:
    """Guards `--kv-cache-dtype q8_0` without a backend: OpenVINO has the setting, not the value."""
    install(monkeypatch)
    stand_in(tmp_path, monkeypatch)
    settings = Settings(cache_dir=tmp_path / "cache", kv_cache_dtype=value)
    found = select_backend_if_known(settings)
    assert found is not None
    assert found.name == owner
    assert found.reason.startswith("kv_cache_dtype is given")


def test_a_value_that_no_backend_here_has_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a folder for OpenVINO: what it takes is said, and nothing is loaded."""
    install(monkeypatch)
    stand_in(tmp_path, monkeypatch)
    sentence = refused(tmp_path, MissingDependency, model=exported(tmp_path), kv_cache_dtype="q8_0")
    assert (
        "OpenVINO does not run this model: it does not take kv_cache_dtype q8_0, but auto, uint8"
        in sentence
    )
    assert "llama.cpp does not run this model: it reads GGUF files" in sentence


def test_a_value_that_a_backend_has_not_is_told_before_a_fetch(tmp_path: Path) -> None:
    """Guards a download of gigabytes for a model that would be refused for its setting."""
    write_tiny_gguf(tmp_path / "head")
    settings = Settings(backend="openvino", kv_cache_dtype="q8_0")
    with pytest.raises(ModelError, match=r"was not fetched, .* not take kv_cache_dtype q8_0, but"):
        check_known(settings, tmp_path / "head", "owner/name")


def test_as_many_layers_on_a_gpu_as_there_can_be_are_none_without_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Guards ADR 005's `n_gpu_layers: -1`: it was refused on every backend that jitney installs."""
    for name in ("openvino", "llamacpp"):
        check_settings(kind_of(name), Settings(gpu_layers=-1))
    load_backend(Settings(backend="fake", gpu_layers=-1)).close()
    (line,) = caplog.messages
    assert "gpu_layers is -1, as many as there can be, and none are on a GPU" in line


def test_bytes_are_refused_by_a_backend_that_has_none(tmp_path: Path) -> None:
    """Guards against a budget that is taken and ignored."""
    sentence = refused_at_once(tmp_path, backend="fake", memory_limit=2**20)
    assert "kv_tokens, not memory_limit" in sentence


@pytest.mark.parametrize("backend", ["openvino", "llamacpp"])
def test_a_mistake_in_a_setting_is_told_before_the_backend_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Guards the order: who mends the setting must not wait for a trial, nor hear of it first."""
    install(monkeypatch)
    script = refuses(UNWELL)
    children = stand_in(tmp_path, monkeypatch, openvino=script, llamacpp=script)
    mistakes: dict[str, dict[str, Any]] = {
        "openvino": {"gpu_layers": 3},
        "llamacpp": {"dtype": "float32"},
    }
    sentence = refused_at_once(tmp_path, backend=backend, **mistakes[backend])
    assert UNWELL not in sentence
    assert children.names == []


@pytest.mark.parametrize("backend", ["openvino", "llamacpp"])
def test_a_backend_that_was_asked_for_and_does_not_work_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Guards `--backend`: the reason and a way out, before a model is fetched or converted."""
    install(monkeypatch)
    children = stand_in(tmp_path, monkeypatch, **{backend: refuses(UNWELL)})
    sentence = refused(tmp_path, ConfigError, backend=backend)
    assert sentence.startswith(f"The {backend} backend does not work on this machine: {UNWELL}; ")
    assert "`jitney backends`" in sentence
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["probes"]
    # Where bfloat16 is tried first, what it fails for is tried again without.
    assert set(children.names) == {backend}
    tried = list(children.names)
    with pytest.raises(ConfigError, match=UNWELL):
        select_backend_if_known(Settings(cache_dir=tmp_path / "cache", backend=backend))  # type: ignore[arg-type]
    assert children.names == tried


def test_one_that_was_asked_for_and_works_is_taken_whatever_the_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards `--backend` on a machine where the other one is broken: that is never tried."""
    install(monkeypatch)
    children = stand_in(tmp_path, monkeypatch, llamacpp="kill -SEGV $$")
    selection = select_backend(Settings(cache_dir=tmp_path / "cache", backend="openvino"))
    assert (selection.name, selection.reason) == ("openvino", "it was asked for")
    assert set(children.names) == {"openvino"}


@pytest.mark.parametrize(
    ("failing", "name", "sentence"),
    [
        ({"openvino": NO_ATTENTION}, "llamacpp", f"OpenVINO does not work here: {NO_ATTENTION}"),
        (
            {"llamacpp": UNWELL},
            "openvino",
            f"it knows the model, and llama.cpp does not work here: {UNWELL}",
        ),
    ],
)
def test_where_one_does_not_work_the_other_is_taken(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: dict[str, str],
    name: str,
    sentence: str,
) -> None:
    """Guards a processor that OpenVINO was not compiled for: nothing is measured there."""
    install(monkeypatch)
    stand_in(tmp_path, monkeypatch, **{each: refuses(why) for each, why in failing.items()})
    for sequences in (1, 64):
        settings = Settings(cache_dir=tmp_path / "cache", max_num_seqs=sequences)
        for selection in (select_backend_if_known(settings), select_backend(settings)):
            assert selection is not None
            assert (selection.name, selection.reason) == (name, sentence)


@pytest.mark.parametrize("backend", ["openvino", "llamacpp", "auto"])
def test_a_folder_that_is_no_model_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Guards against a traceback from a path that is a folder of something else."""
    model = tmp_path / "folder"
    model.mkdir()
    children = stand_in(tmp_path, monkeypatch)
    assert str(model) in refused(tmp_path, ModelError, backend=backend, model=model)
    if backend == "auto":
        # What the file says comes first, where it has a say in the choice.
        assert children.names == []


def test_a_model_that_the_named_backend_refuses_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against what native code says of a folder, which names no way out."""
    stand_in(tmp_path, monkeypatch)
    sentence = refused(tmp_path, ModelError, backend="llamacpp", model=exported(tmp_path))
    assert "cannot be run by llama.cpp: it reads GGUF files" in sentence
    assert sentence.endswith("use the OpenVINO backend.")


def test_a_family_that_openvino_does_not_know_is_refused_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against minutes of conversion for a model that cannot be run."""
    model = tmp_path / "model.gguf"
    write_tiny_gguf(model, shape=TinyShape(layers=1, width=32, heads=2, architecture="gemma"))
    stand_in(tmp_path, monkeypatch)
    sentence = refused(tmp_path, ModelError, backend="openvino", model=model)
    assert "its architecture is gemma" in sentence
    assert sentence.endswith("use the llama.cpp backend.")
    assert not (tmp_path / "cache" / "converted").exists()


def test_an_exported_folder_is_for_openvino(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against reading a folder as a GGUF."""
    install(monkeypatch)
    stand_in(tmp_path, monkeypatch)
    settings = Settings(model=exported(tmp_path), cache_dir=tmp_path / "cache")
    assert select_backend(settings).name == "openvino"


def test_nothing_is_tried_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a bare install: the advice is to add a backend, not to mend one."""
    install(monkeypatch, missing=(*MODULES["openvino"], *MODULES["llamacpp"]))
    children = stand_in(tmp_path, monkeypatch)
    sentence = refused(tmp_path, MissingDependency)
    assert "OpenVINO is not installed, and llama.cpp is not installed" in sentence
    assert children.names == []
    assert not (tmp_path / "cache").exists()
