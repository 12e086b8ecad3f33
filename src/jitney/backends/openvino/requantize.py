"""Rewrites a GGUF with weights that OpenVINO's reader takes without a loss: packed, or as F16.

The reader rounds the offsets of some 4-bit types (Q4_1, Q4_K) to whole steps, which loses as much
again as the quantisation did. It refuses most other types. Here such matrices become Q8_0, whose
steps are sixteen times finer, and floats become F16. For unpacked weights, all become F16. A family
that the reader does not know gets the name of another one: see `recast`. Called by the child of
`convert` only.

Tests: tests/unit/backends/openvino/test_recast.py.
"""

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from jitney.backends.openvino.recast import READ_AS, Piece, pieces
from jitney.models.gguf import read_header

_Type = gguf.GGMLQuantizationType

EXACT = {
    "packed": frozenset({_Type.F16, _Type.Q8_0, _Type.Q4_0, _Type.Q6_K}),
    "float16": frozenset({_Type.F16}),
}
"""Types of matrices that stay as they are, because the reader does not round them."""

FLOATS = frozenset({_Type.F32, _Type.BF16, _Type.F64})

_WRITTEN_BY_THE_WRITER = ("GGUF.", "general.architecture", "general.file_type")


class Rewriting:
    """Writes one model again with other weights: `packed` or `float16`."""

    def __init__(self, source: Path, weights: str) -> None:
        self._reader = gguf.GGUFReader(source)
        header = read_header(source)
        self._family = header.architecture
        self._pieces = list(pieces(header, self._reader.tensors))
        self._exact = EXACT[weights]
        self._packs = weights == "packed"

    @property
    def is_needless(self) -> bool:
        """Whether nothing in the model would change."""
        return self._family not in READ_AS and all(map(self._is_kept, self._pieces))

    def factors(self) -> dict[str, npt.NDArray[np.float32]]:
        """The tensors that stretch the rotary embedding, by name."""
        return {
            tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type)
            for tensor in self._reader.tensors
            if tensor.name.startswith("rope_")
        }

    def write(self, target: Path) -> None:
        """Write the model. Raises OSError."""
        family = READ_AS.get(self._family, self._family)
        writer = gguf.GGUFWriter(target, family)
        writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
        own, new = f"{self._family}.", f"{family}."
        for name, field in self._reader.fields.items():
            if not name.startswith(_WRITTEN_BY_THE_WRITER):
                key = new + name.removeprefix(own) if name.startswith(own) else name
                kind, *inner = field.types
                writer.add_key_value(key, field.contents(), kind, inner[-1] if inner else None)
        for piece in self._pieces:
            kind = self._kind(piece)
            shape = gguf.quant_shape_to_byte_shape(piece.shape, kind)
            size = int(np.prod(shape))
            writer.add_tensor_info(piece.name, shape, np.dtype(np.uint8), size, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for piece in self._pieces:
            writer.write_tensor_data(self._data(piece))
        writer.close()

    def _is_kept(self, piece: Piece) -> bool:
        return len(piece.shape) < 2 or piece.tensor.tensor_type in self._exact

    def _kind(self, piece: Piece) -> gguf.GGMLQuantizationType:
        stored = piece.tensor.tensor_type
        if self._is_kept(piece):
            return stored
        block, _ = gguf.GGML_QUANT_SIZES[_Type.Q8_0]
        can_pack = self._packs and stored not in FLOATS
        return _Type.Q8_0 if can_pack and piece.shape[-1] % block == 0 else _Type.F16

    def _data(self, piece: Piece) -> npt.NDArray[np.generic]:
        if self._is_kept(piece):
            return piece.data
        floats = gguf.dequantize(piece.data, piece.tensor.tensor_type)
        return np.asarray(gguf.quantize(floats, self._kind(piece)))
