"""Unit tests of config.json: old and new spellings, and everything that is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.torch import checkpoint
from jitney.backends.torch.architecture import Architecture, RotaryEmbedding, Scaling
from jitney.backends.torch.hub_folder import read_architecture, weight_files
from jitney.errors import ModelError

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "vocab_size": 300,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


def read(folder: Path, **config: Any) -> Architecture:
    """The architecture that a config.json describes; None takes a usual key away."""
    written = {key: value for key, value in {**SIZES, **config}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(written))
    return read_architecture(folder)


def refused(folder: Path, **config: Any) -> str:
    """The clause of the refusal."""
    with pytest.raises(ValueError) as caught:
        read(folder, **config)
    return str(caught.value)


def test_a_plain_llama(tmp_path: Path) -> None:
    """Guards defaults: what a short config.json leaves out."""
    found = read(tmp_path, model_type="llama", num_key_value_heads=None)
    assert (found.heads, found.heads_kv, found.head) == (4, 4, 16)
    assert found.attention_scale == 0.25
    assert found.rotary == RotaryEmbedding()
    assert (found.windows, found.bare_layers) == ((), frozenset())
    assert (found.is_tied, found.has_biases) == (False, False)
    assert found.weight_count == 7 * (16 * 16 * 64 + 3 * 96 * 64) + 2 * 300 * 64
    assert found.weight_bytes(2, 1) == found.weight_count + 2 * 300 * 64


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
            id="linear",
        ),
        pytest.param(
            {
                "rope_theta": 5e5,
                "rope_scaling": {
                    "rope_type": "llama3",
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                },
            },
            {
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 5e5,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 64,
                }
            },
            id="llama3",
        ),
    ],
)
def test_old_and_new_spellings_are_one(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any]
) -> None:
    """Guards files of all years: the keys of a rotary embedding have moved."""
    found = read(tmp_path, model_type="llama", **old)
    assert found == read(tmp_path, model_type="llama", **new)
    assert found.rotary.base == 5e5
    assert found.rotary.scaling is not Scaling.NONE


def test_gemma_by_its_old_keys_and_inside_a_model_that_sees(tmp_path: Path) -> None:
    """Guards both ways in which Gemma 3 is published, and its pattern of windows."""
    gemma = {
        "hidden_act": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 32,
        "query_pre_attn_scalar": 16,
        "sliding_window": 48,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    found = read(tmp_path, model_type="gemma3_text", sliding_window_pattern=6, **gemma)
    assert found.windows == (48, 48, 48, 48, 48, 0, 48)
    assert found.rotary_of(0) == RotaryEmbedding(base=1e4)
    assert found.rotary_of(5) == RotaryEmbedding(
        base=1e6, scaling=Scaling.LINEAR, factor=8.0, original_length=512
    )
    assert (found.attention_scale, found.embedding_scale) == (0.25, 8.0)
    assert found.is_tied
    inner = {**SIZES, **gemma, "model_type": "gemma3_text"}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": inner, "vision_config": {}})
    )
    assert read_architecture(tmp_path) == found


def test_windows_of_other_families(tmp_path: Path) -> None:
    """Guards prompts longer than a window, and windows that are switched off."""
    assert read(tmp_path, model_type="mistral", sliding_window=32).windows == (32,) * 7
    assert read(tmp_path, model_type="mistral", sliding_window=None).windows == ()
    off = {"sliding_window": 32, "max_window_layers": 5}
    assert read(tmp_path, model_type="qwen2", use_sliding_window=False, **off).windows == ()
    on = read(tmp_path, model_type="qwen2", use_sliding_window=True, **off)
    assert on.windows == (0, 0, 0, 0, 0, 32, 32)


def test_smollm3_has_layers_without_rotation(tmp_path: Path) -> None:
    """Guards the layers that see no positions, listed or by their interval."""
    listed = read(tmp_path, model_type="smollm3", no_rope_layers=[1, 0, 1, 1, 1, 0, 1])
    assert listed.bare_layers == {1, 5}
    assert listed.rotary_of(5) is None
    assert read(tmp_path, model_type="smollm3").bare_layers == {3}


@pytest.mark.parametrize(
    ("config", "clause"),
    [
        ({"model_type": "mamba2"}, "its architecture is 'mamba2', and known are llama"),
        ({"model_type": None}, "its architecture is 'None'"),
        ({"num_hidden_layers": 10**9}, "its number of layers is 1000000000"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers is many"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"hidden_size": 2**60}, "hidden_size is 1152921504606846976"),
        ({"hidden_size": -64, "head_dim": 16}, "numbers in a hidden state is -64"),
        ({"num_attention_heads": 0}, "its number of heads is 0"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({"head_dim": 7}, "make no pairs"),
        ({"vocab_size": 2**31}, "its number of tokens is"),
        ({"max_position_embeddings": 0}, "its number of positions is 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": 0.5}, "wrong order"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "has dynamic"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "has mscale"),
        ({"rope_scaling": {"rope_type": "linear", "factor": [2]}}, "factor is [2]"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "not known here"),
        ({"hidden_act": "relu"}, "its activation is 'relu'"),
        ({"mlp_bias": True}, "it has mlp_bias"),
        ({"quantization_config": {"quant_method": "gptq"}}, "it has quantization_config"),
        ({"final_logit_softcapping": 30.0}, "it has final_logit_softcapping"),
        ({"sliding_window": 16, "layer_types": ["chunked"] * 7}, "layer_types are not known"),
        ({"sliding_window": 16, "layer_types": []}, "layer_types are not known"),
        ({"model_type": "mistral", "sliding_window": -1}, "it has windows"),
    ],
)
def test_what_is_not_known_is_refused(tmp_path: Path, config: dict[str, Any], clause: str) -> None:
    """Guards answers and the process: nothing in a file is ignored, or used unchecked."""
    assert clause in refused(tmp_path, **{"model_type": "llama", **config})


@pytest.mark.parametrize("files", [("pytorch_model.bin",), ("consolidated.pt",)])
def test_pickles_are_never_read(tmp_path: Path, files: tuple[str, ...]) -> None:
    """Guards the machine: a pickle runs code."""
    for name in files:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ModelError, match="pickles, which can run code"):
        weight_files(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/tmp/x.safetensors", ""])
def test_an_index_names_only_files_beside_it(tmp_path: Path, name: str) -> None:
    """Guards other files: an index of somebody else's may name any path."""
    index = {"weight_map": {"model.norm.weight": name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"does not list|lacks"):
        weight_files(tmp_path)


def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Guards downloads that stopped half way."""
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="lacks model-00002-of-00002"):
        weight_files(tmp_path)


def test_other_folders_are_told_apart(tmp_path: Path) -> None:
    """Guards `jitney backends FOLDER`: what is no model is an error, another kind is a refusal."""
    with pytest.raises(ModelError, match=r"has no config\.json"):
        checkpoint.refusal(tmp_path, None)
    (tmp_path / "openvino_model.xml").write_text("")
    assert checkpoint.refusal(tmp_path, None) == "its folder was exported for OpenVINO"
