"""Unit tests of files with weights: parts, damage, and tensors that do not fit."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.backends_for_tests import absence_reason

if reason := absence_reason("torch"):
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("transformers", reason="needs transformers")

import torch
from safetensors.torch import load_file, save_file

from jitney.backends.torch.checkpoint import architecture_at
from jitney.backends.torch.gguf_tensors import GgufTensors
from jitney.backends.torch.hub_tensors import HubTensors
from jitney.backends.torch.load_model import Placement, load_model, tensors_of
from jitney.backends.torch.pass_rows import Span, pack
from jitney.backends.torch.plain_ops import PlainOps
from jitney.backends.torch.scaled_weight import ScaledWeight
from jitney.errors import ModelError
from jitney.models.tiny import TinyShape, write_tiny_gguf
from tests import hub_models_for_tests as models

PLACE = Placement(
    device=torch.device("cpu"),
    dtype=torch.float32,
    kv_dtype=torch.float32,
    blocks=2,
    block_tokens=32,
    positions=64,
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as it was published."""
    folder = tmp_path_factory.mktemp("hub") / "model"
    models.write_hub_model(folder, "smollm2")
    return folder


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """A copy of it to damage."""
    return Path(shutil.copytree(published, tmp_path / "model"))


def load(folder: Path) -> Any:
    shape = architecture_at(folder, 1)
    return load_model(tensors_of(folder, shape), shape, PLACE)


def error(folder: Path) -> str:
    """The one sentence of the error."""
    with pytest.raises(ModelError) as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Write the weights again, with other tensors; None takes one away."""
    path = folder / "model.safetensors"
    found = {**load_file(path), **{name.replace("__", "."): it for name, it in tensors.items()}}
    kept = {name: tensor.contiguous() for name, tensor in found.items() if tensor is not None}
    path.unlink()
    save_file(kept, path)


def test_parts_are_one_model(published: Path, tmp_path: Path) -> None:
    """Guards large models, whose index says which part has which tensor."""
    models.write_hub_model(tmp_path, "smollm2", part_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    whole, parts = load(published), load(tmp_path)
    for one, other in zip(whole.layers, parts.layers, strict=True):
        assert torch.equal(one.qkv, other.qkv)
        assert torch.equal(one.down, other.down)
    assert torch.equal(whole.head, parts.embedding)


@pytest.mark.parametrize(("quantization", "most"), [("fp8", 0.15), ("int8", 0.08)])
def test_weights_of_one_byte_change_logits_by_little(
    published: Path, quantization: str, most: float
) -> None:
    """Guards scales: of random weights in FP8, logits changed by a tenth."""
    shape = architecture_at(published, 1)
    tokens = pack(
        [Span(list(range(4, 36)), 0, [0], 32)],
        decodes=0, row_count=32, block_tokens=32, spare_block=1, device=PLACE.device,
    )  # fmt: skip
    found = []
    for place in (PLACE, replace(PLACE, quantization=quantization)):
        model, ops = load_model(tensors_of(published, shape), shape, place), PlainOps(shape)
        found.append(model.logits(model.hidden(tokens, ops), ops))
    assert isinstance(model.layers[0].down, ScaledWeight)
    change = float((found[0] - found[1]).norm() / found[0].norm())
    assert 0.0 < change < most


def test_a_file_that_is_cut_short_is_a_sentence(folder: Path) -> None:
    """Guards a download that stopped."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    assert "is damaged or cut short" in error(folder)


@pytest.mark.parametrize("header", [b"", b"\xff" * 8, b"\x02\0\0\0\0\0\0\0{]", b"\0" * 100])
def test_a_damaged_header_is_a_sentence(folder: Path, header: bytes) -> None:
    """Guards against a traceback, and against a length that is believed."""
    (folder / "model.safetensors").write_bytes(header)
    assert "is damaged or cut short" in error(folder)


def test_a_tensor_of_another_shape_is_a_sentence(folder: Path) -> None:
    """Guards native code: each shape is the one that the configuration says."""
    change(folder, model__norm__weight=torch.ones(63))
    assert "has model.norm.weight with the shape (63,)" in error(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    """Guards parts of a model."""
    change(folder, model__norm__weight=None)
    assert "has no model.norm.weight" in error(folder)


def test_a_tensor_that_is_not_known_is_refused(folder: Path) -> None:
    """Guards answers: a bias that is left out would change all of them."""
    change(folder, model__layers__0__self_attn__o_proj__bias=torch.ones(64))
    assert "model.layers.0.self_attn.o_proj.bias, which a model" in error(folder)


def test_what_follows_from_others_is_not_missed(folder: Path) -> None:
    """Guards old files, which have the frequencies, or the head that is the embedding."""
    change(folder, model__layers__0__self_attn__rotary_emb__inv_freq=torch.ones(8))
    change(folder, lm_head__weight=torch.ones(268, 64))
    assert len(load(folder).layers) == 3


def test_quantised_weights_are_refused(folder: Path) -> None:
    """Guards answers: numbers of another type mean something else."""
    change(folder, model__norm__weight=torch.ones(64, dtype=torch.int8))
    assert "weights of type I8" in error(folder)


def test_a_config_that_promises_more_is_refused(folder: Path) -> None:
    """Guards a configuration that does not belong to the weights."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 500}))
    assert "has no model.layers.3." in error(folder)


def test_the_text_part_of_a_model_that_sees_is_found(tmp_path: Path) -> None:
    """Guards the names of Gemma 3, which begin in another way there."""
    models.write_hub_model(tmp_path, "gemma3")
    shape = architecture_at(tmp_path, 1)
    path = tmp_path / "model.safetensors"
    plain = HubTensors(tmp_path, shape).read("0.query")
    tensors = {f"language_model.{name}": tensor for name, tensor in load_file(path).items()}
    tensors["vision_tower.x.weight"] = torch.ones(2)
    path.unlink()
    save_file(tensors, path)
    assert torch.equal(HubTensors(tmp_path, shape).read("0.query"), plain)


def test_a_gguf_with_other_tensors_is_refused(tmp_path: Path) -> None:
    """Guards the same for GGUFs."""
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    shape = architecture_at(path, 263)
    with pytest.raises(ModelError, match=r"has token_embd\.weight with the shape"):
        GgufTensors(path, shape)


def test_a_gguf_in_parts_is_one_model(tmp_path: Path) -> None:
    """Guards large GGUFs."""
    write_tiny_gguf(tmp_path / "tiny.gguf", shape=TinyShape(packed=True), part_tensors=5)
    (first, *_) = sorted(tmp_path.glob("tiny-00001-of-*.gguf"))
    from_parts = GgufTensors(first, architecture_at(first, 268)).read("1.down")
    write_tiny_gguf(tmp_path / "whole.gguf", shape=TinyShape(packed=True))
    whole = tmp_path / "whole.gguf"
    assert torch.equal(GgufTensors(whole, architecture_at(whole, 268)).read("1.down"), from_parts)
