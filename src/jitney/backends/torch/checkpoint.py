"""What a published model is, in whichever kind of file: `architecture_at`. Loads no library.

Called before and while a model is loaded, on any thread.

Tests: tests/unit/backends/torch/test_kind.py.
"""

from pathlib import Path

from jitney.backends.torch import hub_folder
from jitney.backends.torch.architecture import Architecture
from jitney.backends.torch.gguf_architecture import architecture_of
from jitney.errors import ModelError
from jitney.models.folder import is_exported
from jitney.models.gguf import read_header


def architecture_at(model: Path, tokens: int) -> Architecture:
    """The architecture of the model in a folder or a GGUF; `tokens` is what its tokenizer has.

    Raises ModelError.
    """
    try:
        return _read(model, tokens)
    except ValueError as error:
        raise ModelError(f"{model} cannot be used: {error}.") from None


def refusal(model: Path, length: int | None) -> str | None:
    """Why the model cannot be run here, as a clause. Raises ModelError for what is no model."""
    try:
        _read(model, tokens=1)
    except ValueError as error:
        return str(error)
    if model.is_dir():
        hub_folder.weight_files(model)
    return None


def _read(model: Path, tokens: int) -> Architecture:
    if not model.is_dir():
        return architecture_of(read_header(model), tokens)
    if is_exported(model):
        raise ValueError("its folder was exported for OpenVINO")
    if not (model / hub_folder.CONFIG).is_file():
        raise ModelError(
            f"{model} has no config.json; name the folder of a model with config.json, "
            "tokenizer.json and safetensors files, or a GGUF file."
        )
    return hub_folder.read_architecture(model)
