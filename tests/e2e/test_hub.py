"""Models by name, through the program as people run it, against a stand-in of the hub."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.models.parts import parts_of
from tests.backends_for_tests import failure, needs, needs_installed
from tests.e2e.hub_place import Q4, Q8, REPOSITORY, SHAPE, Place, break_later, place_in
from tests.e2e.hub_stand_in import COMMIT
from tests.models_for_tests import write_tiny_gguf

CONVERT = """
import sys
from jitney.backends.kinds import kind_of
from jitney.config import environment, resolve
from jitney.loading.model_source import located
settings = resolve({"model": sys.argv[1]}, None, environment()).settings
found = located(settings)
kind_of("openvino").ready(found.model, found)
"""
"""Fetches a model and converts it for OpenVINO, wherever its libraries are."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


@pytest.fixture
def tiny(place: Place) -> bytes:
    return place.hub.repositories[REPOSITORY][Q4]


def test_a_model_is_fetched_by_name_and_then_is_there_without_a_network(
    place: Place, tiny: bytes
) -> None:
    """Guards the whole way: the right file, the library's own layout, and no question twice."""
    path = place.pulled(f"{REPOSITORY}:q8_0")
    assert path.read_bytes() == tiny + b"\0" * 32
    assert path.name == Q8
    assert path.is_relative_to(place.hub_cache / "models--owner--tiny-GGUF" / "snapshots")
    assert path.readlink().name == place.hub.digest(REPOSITORY, Q8)
    assert (place.hub_cache / "models--owner--tiny-GGUF" / "refs" / "main").exists()
    assert not list(place.hub_cache.rglob("*.incomplete"))
    asked = len(place.hub.seen)
    done = place.jitney("backends", "--json", f"{REPOSITORY}:Q8_0")
    assert json.loads(done.stdout)["model"] == f"{REPOSITORY}:Q8_0"
    assert "not fetched" not in done.stdout
    assert len(place.hub.seen) == asked


def test_a_folder_of_safetensors_is_fetched_without_anything_else(place: Place) -> None:
    """Guards people who name a model as it was published, and against code and pickles in it."""
    files = {
        "config.json": b"{}",
        "tokenizer.json": b"{}",
        "model-00001-of-00002.safetensors": b"one",
        "model-00002-of-00002.safetensors": b"two",
        "model.safetensors.index.json": b"{}",
    }
    others = {"modeling.py": b"", "pytorch_model.bin": b"", "original/model.safetensors": b""}
    place.hub.repositories["owner/whole"] = {**files, **others}
    folder = place.pulled("owner/whole")
    found = {each.relative_to(folder).as_posix(): each for each in folder.rglob("*")}
    assert {name: path.read_bytes() for name, path in found.items()} == files
    assert "owner/whole:safetensors" in [each["name"] for each in place.listed()]
    # One part is gone: it is no model until it is fetched again.
    found["model-00002-of-00002.safetensors"].unlink()
    assert place.pulled("owner/whole") == folder
    assert (folder / "model-00002-of-00002.safetensors").read_bytes() == b"two"


def test_what_was_fetched_answers(place: Place) -> None:
    """Guards the way from a name to text; which backend runs it does not matter."""
    needs("llamacpp")
    sizes = ("--backend", "llamacpp", "--max-tokens", "4", "--kv-tokens", "512")
    words = ("run", "--model", REPOSITORY, *sizes, "--greedy", "--raw", "the")
    first = place.jitney(*words)
    assert first.returncode == 0, first.stderr
    again = place.jitney(*words, HF_HUB_OFFLINE="1")
    assert again.stdout == first.stdout != ""


def test_python_takes_a_name_too(place: Place) -> None:
    """Guards `LLM("owner/name:quant")`, and the error that it raises."""
    program = "from jitney import LLM\nLLM('owner/none:Q8_0', backend='llamacpp')"
    done = place.python("-c", program)
    assert done.stderr.splitlines()[-1] == (
        "jitney.errors.ModelError: The hub has no model owner/none; check the spelling, or set "
        "HF_TOKEN if it is private."
    )


def test_nothing_is_fetched_to_list_backends(place: Place) -> None:
    """Guards a command that only looks."""
    done = place.jitney("backends", f"{REPOSITORY}:Q8_0")
    assert done.returncode == 0, done.stderr
    assert f"{REPOSITORY}:Q8_0, not fetched yet" in done.stdout
    assert not place.hub_cache.exists()


@pytest.mark.parametrize(
    ("files", "name", "chosen"),
    [
        ((Q4, Q8), REPOSITORY, Q4),
        ((Q8, "tiny-Q2_K.gguf"), REPOSITORY, Q8),
        (("tiny-IQ3_XS.gguf", "mmproj-F16.gguf"), REPOSITORY, "tiny-IQ3_XS.gguf"),
        (("a/UD-Q4_K_XL.gguf", Q4), f"{REPOSITORY}:q4_k_xl", "a/UD-Q4_K_XL.gguf"),
        (("a/x.gguf", "b/x.gguf"), f"{REPOSITORY}/b/x.gguf", "b/x.gguf"),
    ],
    ids=["Q4_K_M first", "then Q8_0", "the only one", "a given quant", "a given file"],
)
def test_the_file_that_is_meant_is_fetched(
    place: Place, tiny: bytes, files: tuple[str, ...], name: str, chosen: str
) -> None:
    """Guards the choice, and that no other file costs a download."""
    place.hub.repositories[REPOSITORY] = dict.fromkeys(files, tiny)
    assert str(place.pulled(name)).endswith(f"/{chosen}")
    assert {each.path.partition(f"/{COMMIT}/")[2] for each in place.hub.contents()} == {chosen}


@pytest.mark.parametrize(
    ("files", "name", "message"),
    [
        (
            ("m-Q2_K.gguf", "m-Q6_K.gguf"),
            REPOSITORY,
            f"{REPOSITORY} has several models: Q2_K, Q6_K; choose one, such as {REPOSITORY}:Q2_K.",
        ),
        (
            ("m-Q2_K.gguf",),
            f"{REPOSITORY}:Q5_0",
            f"{REPOSITORY} has no Q5_0; it has Q2_K; choose one, such as {REPOSITORY}:Q2_K.",
        ),
        (
            ("a-Q8_0.gguf", "b-Q8_0.gguf"),
            f"{REPOSITORY}:Q8_0",
            f"{REPOSITORY} has several models of Q8_0: a-Q8_0.gguf, b-Q8_0.gguf; name one, such as "
            f"{REPOSITORY}/a-Q8_0.gguf.",
        ),
        (
            ("model.safetensors",),
            REPOSITORY,
            f"{REPOSITORY} has no GGUF file, and no safetensors with config.json and "
            "tokenizer.json; take a repository that has, often the same name "
            "with -GGUF.",
        ),
        ((Q4,), f"{REPOSITORY}/other.gguf", f"{REPOSITORY} has no file other.gguf; it has {Q4}."),
    ],
    ids=["several", "no such quant", "twice", "no GGUF", "no such file"],
)
def test_what_is_not_clear_is_a_list_to_choose_from(
    place: Place, tiny: bytes, files: tuple[str, ...], name: str, message: str
) -> None:
    """Guards against a guess that costs gigabytes."""
    place.hub.repositories[REPOSITORY] = dict.fromkeys(files, tiny)
    assert place.refused("pull", name) == message
    assert place.hub.contents() == []


def test_all_parts_are_fetched_and_count(place: Place, tmp_path: Path) -> None:
    """Guards models in parts: one that lacks a part does not load, and sizes are those of all."""
    write_tiny_gguf(tmp_path / "parts-F32.gguf", shape=SHAPE, part_tensors=5)
    written = sorted(tmp_path.glob("parts-F32-*.gguf"))
    assert len(written) == 3
    place.hub.repositories[REPOSITORY] = {each.name: each.read_bytes() for each in written}
    path = place.pulled(f"{REPOSITORY}:F32")
    assert path.name == "parts-F32-00001-of-00003.gguf"
    assert [each.read_bytes() for each in parts_of(path)] == [each.read_bytes() for each in written]
    [model] = place.listed()
    assert model["bytes"] == sum(each.stat().st_size for each in written)
    overview = json.loads(place.jitney("backends", "--json", f"{REPOSITORY}:F32").stdout)
    openvino = next(each for each in overview["backends"] if each["name"] == "openvino")
    assert openvino["refusal"] == "it comes in 3 parts, and the converter reads single files"


def test_a_file_that_git_itself_holds_is_fetched_by_the_library(place: Place, tiny: bytes) -> None:
    """Guards small files, which have no digest that could be checked."""
    place.hub.in_git.add(Q4)
    assert place.pulled(REPOSITORY).read_bytes() == tiny


def test_models_are_listed_and_removed_by_name(place: Place, tiny: bytes) -> None:
    """Guards the shared cache: only the files of that model go, and only when someone agreed."""
    q4, q8 = place.pulled(f"{REPOSITORY}:Q4_K_M"), place.pulled(f"{REPOSITORY}:Q8_0")
    found = {each["name"]: each for each in place.listed()}
    assert set(found) == {f"{REPOSITORY}:Q4_K_M", f"{REPOSITORY}:Q8_0"}
    assert found[f"{REPOSITORY}:Q4_K_M"]["bytes"] == len(tiny)
    assert found[f"{REPOSITORY}:Q4_K_M"]["kind"] == "hub"
    assert f"{REPOSITORY}:Q8_0\thub\t" in place.jitney("models").stdout
    assert place.refused("models", "rm", f"{REPOSITORY}:Q4_K_M") == (
        f"{REPOSITORY}:Q4_K_M would be removed from the hub's cache, which other tools share, and "
        "there is no terminal to ask on; give --yes."
    )
    assert "There is no model owner/none here" in place.refused("models", "rm", "owner/none", "-y")
    done = place.jitney("models", "rm", f"{REPOSITORY}:Q4_K_M", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"removed {REPOSITORY}:Q4_K_M (")
    assert not q4.exists()
    assert q8.exists()
    assert [each["name"] for each in place.listed()] == [f"{REPOSITORY}:Q8_0"]


def test_a_conversion_outlives_its_source_until_it_is_pruned(place: Place) -> None:
    """Guards the way from a name to a conversion, its name for people, and what becomes of it."""
    needs_installed("openvino")
    if failure("openvino", threads=1, dtype="float32") is None:
        numbers = ("--threads", "1", "--dtype", "float32", "--max-tokens", "1")
        words = ("--model", REPOSITORY, "--backend", "openvino", *numbers, "--raw", "the")
        done = place.jitney("run", *words)
        assert done.returncode == 0, done.stderr
    else:
        # What a run would do first, where it may go on.
        converted = place.python("-c", CONVERT, REPOSITORY)
        assert converted.returncode == 0, converted.stderr
    source, conversion = place.listed()
    assert source["name"] == f"{REPOSITORY}:Q4_K_M"
    assert conversion["kind"] == "converted"
    assert str(conversion["name"]).startswith("tiny-Q4_K_M-")
    assert conversion["state"] == "ready"
    assert place.jitney("models", "rm", REPOSITORY, "-y").returncode == 0
    [conversion] = place.listed()
    assert conversion["state"] == "its source is gone"
    assert " freed (" in place.jitney("models", "prune").stdout
    assert place.listed() == []


def test_prune_takes_what_interrupted_fetches_left_and_no_model(place: Place) -> None:
    """Guards room on the disk, and models against the one who makes it."""
    path = place.pulled(f"{REPOSITORY}:Q8_0")
    break_later(place.hub)
    place.refused("pull", f"{REPOSITORY}:Q4_K_M")
    done = place.jitney("models", "prune")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "19.5 KiB freed (20000 bytes)\n"
    assert not list(place.hub_cache.rglob("*.incomplete"))
    assert path.exists()
    assert place.jitney("models", "prune").stdout == "0 bytes freed\n"
