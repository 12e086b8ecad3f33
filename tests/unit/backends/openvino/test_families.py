"""Which models OpenVINO runs, and with which numbers."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.openvino import families
from jitney.backends.openvino.families import FACTORS_ANY, FACTORS_LONG, Dtypes, Facts
from jitney.errors import ConfigError, ModelError
from jitney.models import folder
from jitney.models.gguf import GgufHeader

pytest.importorskip("gguf", reason="needs the gguf package")

from tests.families_for_tests import CONTEXT, FAMILIES, write_family

HEADER = GgufHeader(
    architecture="llama",
    context_length=2048,
    layer_count=2,
    embedding_length=64,
    head_count=2,
    parameter_count=1,
    kv_bytes_per_token=512,
    state_bytes=0,
    file_bytes=1,
    weight_types=frozenset({"F32", "Q4_1", "Q8_0"}),
    tensor_kinds=frozenset({"attn_q.weight", "ffn_up.weight", "output.weight"}),
    metadata={"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"},
)


def with_metadata(**extra: Any) -> GgufHeader:  # Any: values of metadata
    keys = {name.replace("__", "."): value for name, value in extra.items()}
    return replace(HEADER, metadata={**HEADER.metadata, **keys})


def with_kinds(*kinds: str) -> GgufHeader:
    return replace(HEADER, tensor_kinds=HEADER.tensor_kinds | set(kinds))


def phi3_with(**extra: Any) -> GgufHeader:  # Any: values of metadata
    keys = {f"phi3.{name.replace('__', '.')}": value for name, value in extra.items()}
    return replace(
        HEADER, architecture="phi3", metadata={**HEADER.metadata, **keys}, tensor_kinds=frozenset()
    )


@pytest.mark.parametrize(
    "header",
    [
        HEADER,
        replace(HEADER, architecture="qwen2"),
        replace(HEADER, architecture="qwen3"),
        replace(HEADER, architecture="smollm3"),
        replace(
            HEADER, architecture="phi3", tensor_kinds=frozenset({"attn_qkv.weight", FACTORS_LONG})
        ),
        replace(HEADER, tensor_kinds=frozenset({FACTORS_ANY})),
        with_metadata(llama__rope__scaling__type="yarn", llama__rope__scaling__factor=4.0),
        with_metadata(llama__rope__scaling__type="linear"),
        with_metadata(tokenizer__ggml__pre="gpt-4o"),
        with_metadata(tokenizer__ggml__pre="tekken"),
        replace(HEADER, weight_types=frozenset({"F16"})),
        with_metadata(llama__rope__scaling__type="none", llama__expert_count=0),
        with_metadata(tokenizer__ggml__model="llama", tokenizer__ggml__pre="anything"),
        replace(HEADER, metadata={"tokenizer.ggml.model": "gpt2"}),
    ],
)
def test_plain_decoders_are_run(header: GgufHeader) -> None:
    """Guards against a refusal of what was measured to work."""
    assert families.refusal(header) is None


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (replace(HEADER, architecture="gemma3"), "its architecture is gemma3"),
        (replace(HEADER, weight_types=frozenset({"F32", "IQ1_S"})), "weights of type IQ1_S"),
        (replace(HEADER, weight_types=frozenset({"number 99"})), "weights of type number 99"),
        (with_metadata(llama__rope__scaling__type="dynamic"), "by the rule 'dynamic'"),
        (with_metadata(llama__rope__dimension_count=16), "rotates 16 of the 32 numbers"),
        (phi3_with(rope__dimension_count=40), "40 of them are to be rotated"),
        (phi3_with(rope__dimension_count=15), "15 of them are to be rotated"),
        (with_kinds("attn_q.bias", "attn_output.bias"), "it has attn_output.bias, attn_q.bias"),
        (replace(with_kinds(FACTORS_ANY), architecture="qwen2"), f"it has {FACTORS_ANY}, which"),
        (with_metadata(llama__expert_count=8), "mixture of experts"),
        (replace(HEADER, context_length=None), "does not say how long"),
        (replace(HEADER, kv_bytes_per_token=0), "how large their memory"),
        (with_metadata(tokenizer__ggml__model="t5"), "tokenizer is of the kind 't5'"),
        (replace(HEADER, metadata={}), "tokenizer is of the kind ''"),
        (with_metadata(tokenizer__ggml__pre="bloom"), "by the rules 'bloom'"),
    ],
)
def test_what_would_fail_or_answer_wrongly_is_refused_with_the_reason(
    header: GgufHeader, message: str
) -> None:
    """Guards answers: the reader passes over what it does not know."""
    reason = families.refusal(header)
    assert reason is not None
    assert message in reason
    # It stands inside a sentence.
    assert not reason.endswith(".")


CONFIG: Mapping[str, Any] = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, Facts(2048, 3 * 2 * 16 * 2)),
        ({"num_key_value_heads": None}, Facts(2048, 3 * 4 * 16 * 2)),
        ({"head_dim": 128}, Facts(2048, 3 * 2 * 128 * 2)),
    ],
)
def test_the_facts_of_a_folder_are_read(
    tmp_path: Path, extra: dict[str, Any], expected: Facts
) -> None:
    """Guards the size of memory against heads that share their keys, and against odd heads."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **extra}))
    assert families.facts(tmp_path) == expected


@pytest.mark.parametrize(
    "extra",
    [
        {"num_hidden_layers": None},
        {"num_hidden_layers": -1},
        {"num_attention_heads": 0},
        {"max_position_embeddings": "long"},
        {"max_position_embeddings": 0},
        {"hidden_size": [64]},
    ],
)
def test_a_folder_that_does_not_say_how_large_it_is_is_refused(
    tmp_path: Path, extra: dict[str, Any]
) -> None:
    """Guards against a traceback, and against memory of no size."""
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **extra}))
    with pytest.raises(ModelError, match="does not say how large the model is"):
        families.facts(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file"),
        (b"", "is not JSON"),
        (b'{"a": 1', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'"\xff"', "is not text"),
        (b"[1]", "not a JSON object"),
        (b" " * (folder.CONFIG_BYTES_MAX + 1), "is larger than"),
    ],
)
def test_a_damaged_config_is_a_sentence(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    """Guards against a traceback, and against reading a file without end."""
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        families.facts(tmp_path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("llama", CONTEXT),
        ("llama-3.1", CONTEXT),
        ("llama-yarn", CONTEXT),
        ("phi3", CONTEXT),
        ("phi3-128k", CONTEXT // 2),
        ("phi4-mini", CONTEXT // 2),
    ],
)
def test_sequences_end_where_a_model_would_take_other_factors(
    tmp_path: Path, name: str, length: int
) -> None:
    """Guards Phi: those for long sequences would change what was computed before."""
    path = tmp_path / "model.gguf"
    write_family(path, FAMILIES[name])
    assert families.facts(path).model_len_max == length


def test_sequences_of_phi3_end_with_its_window(tmp_path: Path) -> None:
    """Guards against tokens that see more than the model learned to look at."""
    path = tmp_path / "model.gguf"
    windowed = replace(FAMILIES["phi3"], metadata={"attention.sliding_window": 96})
    write_family(path, windowed)
    assert families.facts(path).model_len_max == 96


def test_a_folder_is_exported_when_both_files_are_there(tmp_path: Path) -> None:
    """Guards against taking any folder for a model."""
    assert not families.is_exported(tmp_path)
    (tmp_path / families.FILES[0]).touch()
    assert not families.is_exported(tmp_path)
    (tmp_path / families.FILES[1]).touch()
    assert families.is_exported(tmp_path)
    assert not families.is_exported(tmp_path / families.FILES[0])


FLAGS = "processor : 0\nflags : fpu avx2 {}\n"


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_auto_is_bfloat16_where_the_processor_has_it(cpuinfo: Path, flag: str) -> None:
    """Guards speed: half the memory is read."""
    cpuinfo.write_text(FLAGS.format(flag))
    assert families.dtypes("auto", "auto", 2) == Dtypes("bf16", "bf16", 2.0, 0)
    # On one thread the library would die while it compiles some models.
    assert families.dtypes("auto", "auto", 1).inference == "f32"


@pytest.mark.parametrize("content", [FLAGS.format("avx512f"), "model : bf16\n", None])
def test_auto_is_float32_where_the_processor_has_not(cpuinfo: Path, content: str | None) -> None:
    """Guards machines on which bfloat16 would be emulated, or that do not say."""
    if content is not None:
        cpuinfo.write_text(content)
    assert families.dtypes("auto", "auto", 2) == Dtypes(
        "f32", "f32", 4.0, families.ACTIVATION_GROUP
    )


@pytest.mark.parametrize(
    ("dtype", "kv", "expected"),
    [
        ("float32", "auto", Dtypes("f32", "f32", 4.0, 0)),
        ("float32", "float32", Dtypes("f32", "f32", 4.0, 0)),
        ("bfloat16", "auto", Dtypes("bf16", "bf16", 2.0, 0)),
        ("bfloat16", "uint8", Dtypes("bf16", "u8", 1.25, 0)),
        ("bfloat16", "float16", Dtypes("bf16", "f16", 2.0, 0)),
    ],
)
def test_what_was_asked_for_is_taken(dtype: str, kv: str, expected: Dtypes) -> None:
    """Guards the names: the library passes over one that it does not know."""
    assert families.dtypes(dtype, kv, 2) == expected


@pytest.mark.parametrize(
    ("dtype", "kv"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("float32", "fp8")]
)
def test_memory_that_no_kernel_reads_is_refused(dtype: str, kv: str) -> None:
    """Guards against a compilation that fails without saying which setting is wrong."""
    with pytest.raises(ConfigError, match=f"kv_cache_dtype {kv} does not go with dtype {dtype}"):
        families.dtypes(dtype, kv, 2)


def test_bfloat16_on_one_thread_is_refused() -> None:
    """Guards the process: the library divides by zero while it compiles some models."""
    with pytest.raises(ConfigError, match="two threads"):
        families.dtypes("bfloat16", "auto", 1)
