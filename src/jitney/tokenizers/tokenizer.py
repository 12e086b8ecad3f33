"""The tokenizer of a model: a GGUF or an exported folder.

A backend builds it once; then any thread may call `encode`.
"""

from collections.abc import Sequence
from pathlib import Path

from jitney.core.backend import Segment
from jitney.tokenizers.folder_tokenizer import FolderTokenizer
from jitney.tokenizers.gguf_tokenizer import GgufTokenizer

ModelTokenizer = FolderTokenizer | GgufTokenizer


def read_tokenizer(path: Path) -> ModelTokenizer:
    """Read the tokenizer of a model. Raises ModelError if it is missing, damaged or unknown."""
    return FolderTokenizer(path) if path.is_dir() else GgufTokenizer(path)


def encode_all(tokenizer: ModelTokenizer, texts: Sequence[Segment]) -> list[int]:
    """Tokens of texts, one after the other."""
    return [token for text, special in texts for token in tokenizer.encode(text, special=special)]
