"""Tests of `jitney.models.hub_reference`: what is a name, and which file it means."""

from pathlib import Path

import pytest

from jitney.errors import ModelError
from jitney.models.hub_reference import (
    ModelFiles,
    Reference,
    choose_model,
    models_among,
    parse_reference,
    reference_of,
)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("Qwen/Qwen3-0.6B-GGUF:Q8_0", Reference("Qwen/Qwen3-0.6B-GGUF", quant="Q8_0")),
        ("owner/name", Reference("owner/name")),
        ("owner/name/file.gguf", Reference("owner/name", file="file.gguf")),
        ("owner/name/Q8_0/a-00001-of-00002.gguf", None),
    ],
)
def test_a_name_is_read_and_written_the_same(text: str, reference: Reference | None) -> None:
    """Guards every form that the reference page promises."""
    found = parse_reference(text)
    assert found is not None
    assert str(found) == text
    assert reference is None or found == reference


@pytest.mark.parametrize(
    "text",
    [
        *(
            "model.gguf",
            "models/foo.gguf",
            "/a/b",
            "./a/b",
            "../a/b",
            "~/a",
            "name",
            "a/b:",
            "a/b:c d",
        ),
        *("a/../b.gguf", "a/b/../c.gguf", "a//b", "-a/b", "a" * 97 + "/b", "a/b\n", "a/b/c", ""),
    ],
)
def test_what_can_only_be_a_path_is_no_name(text: str) -> None:
    """Guards the hub against questions about paths, and the cache against names that climb."""
    assert parse_reference(text) is None


def test_safetensors_are_a_model_where_all_of_it_is_there() -> None:
    """Guards half a model, and repositories whose GGUFs are meant."""
    whole = ["config.json", "tokenizer.json", "model.safetensors", "README.md", "modeling.py"]
    (found,) = models_among(whole)
    assert found.is_folder
    assert found.files == ("config.json", "tokenizer.json", "model.safetensors")
    assert choose_model(Reference("owner/name"), [found]) == found
    part = "model-00001-of-00002.safetensors"
    assert not models_among(["config.json", "tokenizer.json", part])
    assert not models_among(["tokenizer.json", "model.safetensors"])
    assert [each.is_folder for each in models_among([*whole, "a-Q8_0.gguf"])] == [False]


def test_whatever_exists_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards people who have a folder that is called like a model."""
    monkeypatch.chdir(tmp_path)
    assert reference_of(Path("owner/name")) == Reference("owner/name")
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert reference_of(Path("owner/name")) is None
    assert reference_of(None) is None
    assert reference_of(Path("owner/name") / ("x" * 300 + ".gguf")) is None


@pytest.mark.parametrize(
    ("file", "label"),
    [
        ("Qwen3-0.6B-Q8_0.gguf", "Q8_0"),
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("UD-Q4_K_XL/m-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("m.IQ2_XXS.gguf", "IQ2_XXS"),
        ("BF16/m.gguf", "BF16"),
        ("m_fp16.gguf", "FP16"),
        ("gpt-oss-20b-MXFP4.GGUF", "MXFP4"),
        ("Qwen3.gguf", "Qwen3"),
    ],
)
def test_a_quant_is_found_in_names_as_people_write_them(file: str, label: str) -> None:
    """Guards the list to choose from."""
    assert [each.label for each in models_among([file])] == [label]


def test_parts_are_one_model_and_only_when_all_are_there() -> None:
    """Guards against a model of which a part is missing."""
    parts = [f"Q8_0/m-Q8_0-0000{number}-of-00003.gguf" for number in (3, 1, 2)]
    assert models_among([*parts, "mmproj-F16.gguf", "m-imatrix.gguf", "README.md"]) == [
        ModelFiles("Q8_0", tuple(sorted(parts)))
    ]
    assert models_among(parts[:2]) == []


def test_a_quant_is_a_whole_word() -> None:
    """Guards Q4_K against Q4_K_M, and Q4_0 against IQ4_0."""
    among = models_among(["m-Q4_K_M.gguf", "m-IQ4_NL.gguf", "m-UD-Q2_K_XL.gguf"])
    assert choose_model(Reference("a/b", quant="q2_k_xl"), among).files == ("m-UD-Q2_K_XL.gguf",)
    for quant in ("Q4_K", "Q4_NL", "K_M2"):
        with pytest.raises(ModelError, match=f"has no {quant}; it has"):
            choose_model(Reference("a/b", quant=quant), among)


def test_a_long_list_is_cut() -> None:
    """Guards the terminal against a repository of hundreds of files."""
    among = models_among([f"model{number}.gguf" for number in range(100)])
    with pytest.raises(ModelError, match=r"and 60 more; choose one"):
        choose_model(Reference("a/b"), among)
