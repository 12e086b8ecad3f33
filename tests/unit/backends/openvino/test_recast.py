"""A model cut to one that OpenVINO's reader builds: each row in its place, packed ones as is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf", reason="needs the gguf package")

import gguf

from jitney.backends.openvino.recast import pieces
from jitney.backends.openvino.requantize import Rewriting
from jitney.backends.openvino.rotary import row_order
from jitney.models.gguf import read_header
from tests.families_for_tests import FAMILIES, TinyFamily, write_family
from tests.models_for_tests import finish

PHI = FAMILIES["phi4-mini"]
TOTAL = (PHI.heads + 2 * PHI.heads_kv) * PHI.head


def written(folder: Path, family: TinyFamily, weights: str = "packed") -> dict[str, np.ndarray]:
    """The tensors that the reader would be given of a checkpoint, by name."""
    source, target = folder / "model.gguf", folder / "exact.gguf"
    write_family(source, family)
    rewriting = Rewriting(source, weights)
    assert not rewriting.is_needless
    rewriting.write(target)
    reader = gguf.GGUFReader(target)
    return {each.name: gguf.dequantize(each.data, each.tensor_type) for each in reader.tensors}


def stored(path: Path) -> dict[str, np.ndarray]:
    reader = gguf.GGUFReader(path)
    return {each.name: gguf.dequantize(each.data, each.tensor_type) for each in reader.tensors}


def test_fused_matrices_are_cut_and_heads_put_in_order(tmp_path: Path) -> None:
    """Guards queries, keys, values and both gates of Phi against each other's rows."""
    found = written(tmp_path, PHI)
    own = stored(tmp_path / "model.gguf")
    fused, head = own["blk.1.attn_qkv.weight"], PHI.head
    queries, keys = PHI.heads * head, (PHI.heads + PHI.heads_kv) * head
    order = row_order(read_header(tmp_path / "model.gguf"))
    for name, part in (("q", fused[:queries]), ("k", fused[queries:keys])):
        by_head = part.reshape(-1, head, PHI.width)[:, order]
        np.testing.assert_array_equal(
            found[f"blk.1.attn_{name}.weight"], by_head.reshape(-1, PHI.width)
        )
    np.testing.assert_array_equal(found["blk.1.attn_v.weight"], fused[keys:])
    gates = own["blk.1.ffn_up.weight"]
    np.testing.assert_array_equal(found["blk.1.ffn_gate.weight"], gates[: PHI.inner])
    np.testing.assert_array_equal(found["blk.1.ffn_up.weight"], gates[PHI.inner :])
    assert "blk.1.attn_qkv.weight" not in found


def test_the_reader_is_told_another_family_with_the_same_numbers(tmp_path: Path) -> None:
    """Guards sizes: they are looked up under the name of the family."""
    written(tmp_path, FAMILIES["smollm3"])
    recast, own = read_header(tmp_path / "exact.gguf"), read_header(tmp_path / "model.gguf")
    assert (recast.architecture, own.architecture) == ("llama", "smollm3")
    sizes = ("context_length", "layer_count", "head_count", "kv_bytes_per_token")
    for name in sizes:
        assert getattr(recast, name) == getattr(own, name), name


def test_packed_rows_are_moved_as_they_are(tmp_path: Path) -> None:
    """Guards against rounding weights that the reader takes as they are."""
    plain, path = tmp_path / "plain.gguf", tmp_path / "packed.gguf"
    write_family(plain, PHI)
    reader = gguf.GGUFReader(plain)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer = gguf.GGUFWriter(path, "phi3")
    for name, each in reader.fields.items():
        if name.startswith("phi3."):
            writer.add_key_value(name, each.contents(), each.types[0])
    packed = {
        each.name: gguf.quantize(gguf.dequantize(each.data, each.tensor_type), kind)
        for each in reader.tensors
        if each.name.endswith("attn_qkv.weight")
    }
    for name, each in packed.items():
        writer.add_tensor(name, each, raw_dtype=kind)
    finish(writer)
    cut = list(pieces(read_header(path), gguf.GGUFReader(path).tensors))
    assert len(cut) == 3 * PHI.layers
    for piece in cut:
        assert piece.tensor.tensor_type == kind
        assert piece.rows is not None
        np.testing.assert_array_equal(piece.data, packed[piece.tensor.name][piece.rows])
    assert sum(piece.shape[0] for piece in cut) == PHI.layers * TOTAL


def test_a_fused_matrix_of_another_size_is_an_error(tmp_path: Path) -> None:
    """Guards against a header that does not tell the truth about its heads."""
    path = tmp_path / "model.gguf"
    write_family(path, PHI)
    header = read_header(path)
    lying = replace(header, metadata={**header.metadata, "phi3.attention.head_count_kv": 4})
    with pytest.raises(ValueError, match="rows"):
        list(pieces(lying, gguf.GGUFReader(path).tensors))
