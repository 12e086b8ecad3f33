"""Unpacks a GGUF file into a folder as Hugging Face's libraries write it, for vLLM.

A program for the Python of vLLM's own environment: its packages clash with those of jitney. So it
imports nothing of jitney: `python hf_folder.py FILE.gguf FOLDER`.
"""

import importlib
import sys
from pathlib import Path
from typing import Any  # Any: torch and transformers may not be installed


def write_folder(file: Path, folder: Path) -> None:
    """Weights as bfloat16, the configuration and the tokenizer."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    models = transformers.AutoModelForCausalLM
    loaded = models.from_pretrained(**source, dtype=torch.bfloat16)
    # A model that came from a GGUF file counts as packed, and is not written.
    if hasattr(loaded.config, "quantization_config"):
        del loaded.config.quantization_config
    unpacked = models.from_config(loaded.config, dtype=torch.bfloat16)
    unpacked.load_state_dict(loaded.state_dict())
    unpacked.save_pretrained(str(folder))
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(str(folder))


if __name__ == "__main__":
    write_folder(Path(sys.argv[1]), Path(sys.argv[2]))
