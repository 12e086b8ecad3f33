"""A GGUF whose weights OpenVINO's reader takes as they are.

The reader rounds the offsets of 4-bit types that have some (Q4_1, Q4_K) to whole steps, which costs
as much again as the quantisation did, and refuses most other types. Here such matrices become Q8_0,
whose steps are sixteen times finer, and floats become F16. Called by the child of `convert` only.
"""

from pathlib import Path

import gguf
import numpy as np

EXACT = frozenset({gguf.GGMLQuantizationType[name] for name in ("F16", "Q8_0", "Q4_0", "Q6_K")})
"""Types of matrices that the reader takes without rounding."""

FLOATS = frozenset({gguf.GGMLQuantizationType[name] for name in ("F32", "BF16", "F64")})

_WRITTEN_BY_THE_WRITER = ("GGUF.", "general.architecture", "general.file_type")


def is_exact(reader: gguf.GGUFReader) -> bool:
    """Whether nothing of it needs to be written anew."""
    return all(_is_kept(tensor) for tensor in reader.tensors)


def write_exact(reader: gguf.GGUFReader, target: Path) -> None:
    """Write the model again with every matrix in a type that is read exactly. Raises OSError."""
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    for name, field in reader.fields.items():
        if not name.startswith(_WRITTEN_BY_THE_WRITER):
            kind, *inner = field.types
            writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
    for tensor in reader.tensors:
        kind = _kind(tensor)
        shape = gguf.quant_shape_to_byte_shape(tuple(map(int, reversed(tensor.shape))), kind)
        size = int(np.prod(shape))
        writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in reader.tensors:
        writer.write_tensor_data(_data(tensor))
    writer.close()


def _is_kept(tensor: gguf.ReaderTensor) -> bool:
    return len(tensor.shape) < 2 or tensor.tensor_type in EXACT


def _kind(tensor: gguf.ReaderTensor) -> gguf.GGMLQuantizationType:
    if _is_kept(tensor):
        return tensor.tensor_type
    block, _ = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_0]
    is_half = tensor.tensor_type in FLOATS or int(tensor.shape[0]) % block
    return gguf.GGMLQuantizationType.F16 if is_half else gguf.GGMLQuantizationType.Q8_0


def _data(tensor: gguf.ReaderTensor) -> "np.ndarray[tuple[int, ...], np.dtype[np.generic]]":
    if _is_kept(tensor):
        return np.asarray(tensor.data)
    floats = gguf.dequantize(tensor.data, tensor.tensor_type)
    return np.asarray(gguf.quantize(floats, _kind(tensor)))
