"""Tests of `jitney.cli.backends`: what is here, what each can do, what would be chosen."""

import json
from pathlib import Path

import pytest

from jitney.backends.kinds import NAMES, kind_of
from jitney.cli import backends
from jitney.cli.backends import NOT_MEASURED, Overview, overview, overview_json
from jitney.config import Settings
from jitney.config.settings import BackendName
from tests.children_for_tests import MODULES, Children, install, refuses, stand_in

NO_ATTENTION = "it has no attention"


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Children:
    """Both backends are installed and work, whatever is here."""
    install(monkeypatch)
    return stand_in(tmp_path, monkeypatch)


def state(found: Overview, name: str) -> str:
    return next(backends.state(each) for each in found.states if each.kind.name == name)


def test_a_missing_library_is_said_with_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the newcomer: what to install, and that the rest works."""
    stand_in(tmp_path, monkeypatch)
    install(monkeypatch, missing=MODULES["llamacpp"])
    found = overview(Settings(cache_dir=tmp_path))
    assert state(found, "llamacpp") == f"not installed: {kind_of('llamacpp').advice}"
    assert state(found, "fake") == "built in"
    assert found.chosen == "openvino"
    assert "llama.cpp is not installed" in found.reason
    install(monkeypatch, missing=("tokenizers",))
    found = overview(Settings(cache_dir=tmp_path))
    assert "the extra `openvino`" in state(found, "openvino")
    assert found.chosen == "llamacpp"


def test_one_that_does_not_work_is_told_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards people whose processor a library was not made for: what fails, why, what is left."""
    install(monkeypatch)
    stand_in(tmp_path, monkeypatch, openvino=refuses(NO_ATTENTION))
    found = overview(Settings(cache_dir=tmp_path))
    assert state(found, "openvino").endswith(f"; works here: no: {NO_ATTENTION}")
    assert state(found, "llamacpp").endswith("; works here: yes, it was tried")
    assert found.chosen == "llamacpp"
    assert found.reason == f"OpenVINO does not work here: {NO_ATTENTION}"
    known = {each["name"]: each for each in json.loads(overview_json(found))["backends"]}
    works = {name: each["works"] for name, each in known.items() if name != "torch"}
    assert works == {"openvino": False, "llamacpp": True, "fake": True}
    assert [known[name]["installed"] for name in ("openvino", "llamacpp")] == [True, True]
    assert known["openvino"]["failure"] == NO_ATTENTION
    assert known["llamacpp"]["failure"] is None


@pytest.mark.parametrize(
    ("missing", "failing", "named_chosen", "reason"),
    [
        ((*MODULES["llamacpp"], "openvino"), (), ("auto", None), "llama.cpp is not installed"),
        ((), ("openvino", "llamacpp"), ("auto", None), f"does not work here: {NO_ATTENTION}"),
        ((), ("openvino",), ("openvino", None), f"work on this machine: {NO_ATTENTION}"),
        (MODULES["llamacpp"], (), ("llamacpp", "llamacpp"), "asked for; but it is not inst"),
    ],
    ids=["nothing installed", "nothing works", "a forced one fails", "a forced one is missing"],
)
def test_what_stands_against_a_choice_is_told_and_not_raised(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    missing: tuple[str, ...],
    failing: tuple[str, ...],
    named_chosen: tuple[BackendName, str | None],
    reason: str,
) -> None:
    """Guards the one command that helps where a start fails: it says what a start would say."""
    backend, chosen = named_chosen
    install(monkeypatch, missing=missing)
    stand_in(tmp_path, monkeypatch, **dict.fromkeys(failing, refuses(NO_ATTENTION)))
    found = overview(Settings(cache_dir=tmp_path, backend=backend))
    assert found.chosen == chosen
    assert reason in found.reason
    assert found.reason.count(NO_ATTENTION) == len(failing)


def test_each_backend_is_tried_once(tmp_path: Path, children: Children) -> None:
    """Guards against a command that takes seconds every time."""
    for _ in range(3):
        overview(Settings(cache_dir=tmp_path))
    assert sorted(children.names) == sorted(MODULES)


@pytest.mark.usefixtures("children")
def test_where_speed_decides_and_is_not_known_that_is_said(tmp_path: Path) -> None:
    """Guards against a command that measures or fetches when it only should tell."""
    cache = tmp_path / "cache"
    found = overview(Settings(cache_dir=cache, max_num_seqs=4))
    assert found.chosen is None
    assert found.reason == NOT_MEASURED
    assert "not fetched yet" in found.model
    assert [path.name for path in cache.iterdir()] == ["probes"]
    kept = [json.loads(path.read_text()) for path in (cache / "probes").glob("*.json")]
    answers = [each[name] for each in kept for name in each if name in NAMES]
    assert [each["failure"] for each in answers] == [None] * len(MODULES)


@pytest.mark.usefixtures("children")
def test_a_family_that_openvino_does_not_know_is_said(tmp_path: Path) -> None:
    """Guards the reason: which backend refuses the model, and which runs it."""
    models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")
    model = tmp_path / "model.gguf"
    models.write_tiny_gguf(model, shape=models.TinyShape(architecture="gemma"))
    found = overview(Settings(model=model, cache_dir=tmp_path / "cache", backend="openvino"))
    refusals = {each.kind.name: each.refusal for each in found.states}
    assert "gemma" in (refusals["openvino"] or "")
    assert refusals["llamacpp"] is None
    assert "cannot run the model" in found.reason
    known = json.loads(overview_json(found))
    assert "gemma" in known["backends"][0]["refusal"]


@pytest.mark.usefixtures("children")
def test_the_length_that_was_asked_for_counts(tmp_path: Path) -> None:
    """Guards Phi: OpenVINO runs it up to its original length, and llama.cpp beyond."""
    made = pytest.importorskip("tests.families_for_tests", reason="needs the gguf package")
    model = tmp_path / "model.gguf"
    made.write_family(model, made.FAMILIES["phi4-mini"])
    for length, is_refused in ((512, False), (513, True)):
        settings = Settings(
            model=model, max_model_len=length, backend="openvino", cache_dir=tmp_path / "cache"
        )
        found = overview(settings)
        refusals = {each.kind.name: each.refusal for each in found.states}
        assert (refusals["openvino"] is not None) is is_refused, length
        assert refusals["llamacpp"] is None


@pytest.mark.usefixtures("children")
def test_json_has_the_facts_apart(tmp_path: Path) -> None:
    """Guards scripts: facts as values, and not only in words."""
    known = json.loads(overview_json(overview(Settings(cache_dir=tmp_path, backend="fake"))))
    assert set(known) == {"backends", "model", "chosen", "reason", "numbers"}
    assert known["chosen"] == "fake"
    texts = {each["name"]: each["texts"] for each in known["backends"]}
    assert all(each.startswith("the same whatever else") for each in texts.values())
    blocks = {each["name"]: each["block_tokens"] for each in known["backends"]}
    assert blocks == {"torch": 32, "openvino": 32, "llamacpp": 1, "fake": 1}


@pytest.mark.usefixtures("children")
def test_what_auto_amounts_to_is_said(tmp_path: Path) -> None:
    """Guards people who wonder why two machines answer differently."""
    found = overview(Settings(cache_dir=tmp_path, dtype="float32", threads=3, backend="openvino"))
    assert found.numbers == "float32, keys and values in float32, 3 threads"
    found = overview(Settings(cache_dir=tmp_path, threads=1, backend="openvino"))
    assert found.numbers is not None
    assert "activations rounded to 8 bits, one thread" in found.numbers
