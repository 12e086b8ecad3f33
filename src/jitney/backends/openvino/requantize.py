"""A GGUF whose weights OpenVINO's reader takes as they are, packed or as 16-bit floats.

The reader rounds the offsets of 4-bit types that have some (Q4_1, Q4_K) to whole steps, which costs
as much again as the quantisation did, and refuses most other types. Here such matrices become Q8_0,
whose steps are sixteen times finer, and floats become F16. Where weights are to be unpacked, all
become F16. Called by the child of `convert` only.
"""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

_Type = gguf.GGMLQuantizationType

EXACT = {
    "packed": frozenset({_Type.F16, _Type.Q8_0, _Type.Q4_0, _Type.Q6_K}),
    "float16": frozenset({_Type.F16}),
}
"""Types of matrices that are left as they are: those that the reader takes without rounding."""

FLOATS = frozenset({_Type.F32, _Type.BF16, _Type.F64})

_WRITTEN_BY_THE_WRITER = ("GGUF.", "general.architecture", "general.file_type")


class Rewriting:
    """One model, to be written again with other weights: `packed` or `float16`."""

    def __init__(self, source: Path, weights: str) -> None:
        self._reader = gguf.GGUFReader(source)
        self._exact = EXACT[weights]
        self._packs = weights == "packed"

    @property
    def is_needless(self) -> bool:
        """Whether nothing would change."""
        return all(map(self._is_kept, self._reader.tensors))

    def write(self, target: Path) -> None:
        """Write the model. Raises OSError."""
        fields, tensors = self._reader.fields, self._reader.tensors
        writer = gguf.GGUFWriter(target, fields["general.architecture"].contents())
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        for name, field in fields.items():
            if not name.startswith(_WRITTEN_BY_THE_WRITER):
                kind, *inner = field.types
                writer.add_key_value(name, field.contents(), kind, inner[-1] if inner else None)
        for tensor in tensors:
            kind = self._kind(tensor)
            shape = gguf.quant_shape_to_byte_shape(tuple(map(int, reversed(tensor.shape))), kind)
            size = int(np.prod(shape))
            writer.add_tensor_info(tensor.name, shape, np.dtype(np.uint8), size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(self._data(tensor))
        writer.close()

    def _is_kept(self, tensor: gguf.ReaderTensor) -> bool:
        return len(tensor.shape) < 2 or tensor.tensor_type in self._exact

    def _kind(self, tensor: gguf.ReaderTensor) -> gguf.GGMLQuantizationType:
        if self._is_kept(tensor):
            return tensor.tensor_type
        block, _ = gguf.GGML_QUANT_SIZES[_Type.Q8_0]
        can_pack = self._packs and tensor.tensor_type not in FLOATS
        return _Type.Q8_0 if can_pack and int(tensor.shape[0]) % block == 0 else _Type.F16

    def _data(self, tensor: gguf.ReaderTensor) -> npt.NDArray[np.generic]:
        if self._is_kept(tensor):
            return np.asarray(tensor.data)
        floats = gguf.dequantize(tensor.data, tensor.tensor_type)
        return np.asarray(gguf.quantize(floats, self._kind(tensor)))
