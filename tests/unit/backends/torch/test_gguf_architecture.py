"""Unit tests of GGUF headers as architectures: what families have of their own, and refusals."""

from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.backends.torch.architecture import Activation, Architecture, RotaryEmbedding, Scaling
from jitney.backends.torch.gguf_architecture import architecture_of
from jitney.models.gguf import GgufHeader, read_header
from tests.families_for_tests import FAMILIES, write_family


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GgufHeader]:
    """The headers of some families."""
    folder, made = tmp_path_factory.mktemp("headers"), {}
    for name in ("llama", "gemma3", "smollm3", "qwen2", "qwen3", "phi3", "llama-yarn"):
        write_family(folder / name, FAMILIES[name])
        made[name] = read_header(folder / name)
    return made


def changed(header: GgufHeader, **values: Any) -> Architecture:
    """The architecture of a header with other values."""
    own = {f"{header.architecture}.{key.replace('__', '.')}": it for key, it in values.items()}
    return architecture_of(replace(header, metadata={**header.metadata, **own}), 268)


def test_families_differ_in_what_they_have(headers: dict[str, GgufHeader]) -> None:
    """Guards what the answers of one family hang on and others do not have."""
    gemma = changed(headers["gemma3"])
    assert gemma.windows == (64, 64, 64, 64, 64, 0)
    assert (gemma.activation, gemma.embedding_scale) == (Activation.GELU, 128**0.5)
    assert gemma.rotary_of(0) == RotaryEmbedding(base=10_000.0)
    assert (gemma.has_head_norms, gemma.has_after_norms, gemma.is_tied) == (True, True, True)
    assert changed(headers["smollm3"]).bare_layers == {3}
    assert changed(headers["qwen2"]).has_biases
    assert changed(headers["qwen3"]).has_head_norms
    assert changed(headers["llama-yarn"]).rotary.scaling is Scaling.YARN


def test_gemma_27b_scales_in_another_way(headers: dict[str, GgufHeader]) -> None:
    """Guards the largest Gemma, which is known only by its number of layers."""
    large = replace(headers["gemma3"], layer_count=62)
    assert architecture_of(large, 268).attention_scale == (128 / 4) ** -0.5
    assert changed(headers["gemma3"]).attention_scale == 64**-0.5


@pytest.mark.parametrize(
    ("values", "clause"),
    [
        ({"attention__head_count": 0}, "only a part of the 128 numbers"),
        ({"attention__head_count": (4, 2)}, "attention.head_count is (4, 2)"),
        ({"attention__layer_norm_rms_epsilon": "small"}, "and not a number above 0"),
        ({"rope__dimension_count": 16}, "only a part of the 32 numbers"),
        ({"attention__value_length": 16}, "different lengths"),
        ({"feed_forward_length": 2**31}, "is 2147483648, not 1 to"),
        ({"expert_count": 8}, "mixture of experts"),
        ({"rope__scaling__type": "longrope", "rope__scaling__factor": 2.0}, "the rule 'longrope'"),
        ({"rope__freq_base": -1.0}, "rope.freq_base is -1.0"),
    ],
)
def test_impossible_numbers_are_refused(
    headers: dict[str, GgufHeader], values: dict[str, Any], clause: str
) -> None:
    """Guards memory and answers against any header."""
    with pytest.raises(ValueError) as caught:
        changed(headers["llama"], **values)
    assert clause in str(caught.value)


def test_another_architecture_is_refused_with_the_known_ones(
    headers: dict[str, GgufHeader],
) -> None:
    """Guards the user, who can take another model or another backend."""
    with pytest.raises(ValueError) as caught:
        changed(headers["phi3"])
    assert "'phi3', and known are llama, smollm3, qwen2, qwen3, gemma3" in str(caught.value)
