"""The tokenizer of a model: of a GGUF or of an exported folder.

Built once by the backend, then any thread may call `encode`.
"""

from pathlib import Path

from jitney.tokenizers.folder_tokenizer import FolderTokenizer
from jitney.tokenizers.gguf_tokenizer import GgufTokenizer

ModelTokenizer = FolderTokenizer | GgufTokenizer


def read_tokenizer(path: Path) -> ModelTokenizer:
    """Read what a model brings. Raises ModelError when it is missing, damaged or unknown."""
    return FolderTokenizer(path) if path.is_dir() else GgufTokenizer(path)
