"""`HubTensors`: the weights of a model in a folder of the hub, out of its safetensors files.

Called while a backend is built. The library checks that a header fits its file, and runs no code of
a file. Which tensors there are, and their shapes, is checked here before one is read.

Tests: tests/unit/backends/torch/test_load_model.py.
"""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.hub_folder import weight_files
from jitney.backends.torch.tensor_names import hub_names, tensor_shapes
from jitney.errors import ModelError

_PREFIXES = ("model.language_model.", "language_model.model.")
"""What the names of the text part begin with where a model also reads images."""
_NOT_TEXT = ("model.vision_tower.", "vision_tower.", "model.multi_modal_projector.", "multi_modal_")
_NEEDLESS = (".rotary_emb.inv_freq", "lm_head.weight")
"""Endings of tensors that follow from others, and that some files have all the same."""
_TYPES = ("F64", "F32", "F16", "BF16")


class HubTensors:
    """Reads tensors by our keys. Raises ModelError."""

    def __init__(self, folder: Path, shape: Architecture) -> None:
        self._folder = folder
        self._shape = shape
        self._shapes = tensor_shapes(shape)
        self._names = hub_names(shape)
        self._files: dict[str, tuple[Any, str]] = {}
        for path in weight_files(folder):
            self._open(path)
        self._check()

    def read(self, key: str) -> Tensor:
        """A tensor, as it is stored."""
        file, stored = self._files[self._names[key]]
        try:
            tensor: Tensor = file.get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise self._damaged(self._folder, error) from None
        if self._shape.has_after_norms and key.endswith("norm"):
            # Gemma stores how far the weight of a norm is from 1.
            return tensor.float() + 1.0
        return tensor

    def factors(self) -> None:
        """The factors of the rotary embedding: they are in the configuration."""

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt", device="cpu")
            for stored in list(file.keys()):
                name = stored
                for prefix in _PREFIXES:
                    if stored.startswith(prefix):
                        name = f"model.{stored.removeprefix(prefix)}"
                if not stored.startswith(_NOT_TEXT):
                    self._files[name.removeprefix("language_model.")] = (file, stored)
        except (SafetensorError, OSError) as error:
            raise self._damaged(path, error) from None

    def _check(self) -> None:
        known = set(self._names.values())
        strange = sorted(
            name for name in self._files if name not in known and not name.endswith(_NEEDLESS)
        )
        if strange:
            raise ModelError(
                f"{self._folder} has {strange[0][:200]}, which a model of the architecture "
                f"{self._shape.family} does not have here; take another model."
            )
        for key, name in self._names.items():
            if name not in self._files:
                raise ModelError(f"{self._folder} has no {name}; fetch it again.")
            file, stored = self._files[name]
            piece = file.get_slice(stored)
            size, kind = tuple(piece.get_shape()), piece.get_dtype()
            if size != self._shapes[key]:
                raise ModelError(
                    f"{self._folder} has {name} with the shape {size}, and its config.json says "
                    f"{self._shapes[key]}; fetch it again."
                )
            if kind not in _TYPES:
                raise ModelError(
                    f"{self._folder} has weights of type {kind}, and {', '.join(_TYPES)} can be "
                    "read; take the model as it was before it was quantised."
                )

    def _damaged(self, path: Path, error: Exception) -> ModelError:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200].rstrip(".")
        return ModelError(f"{path} is damaged or cut short ({reason}); fetch it again.")
