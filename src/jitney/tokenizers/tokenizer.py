"""Text to tokens and back, without llama.cpp: the tokenizer of a GGUF or of an exported folder.

Built once by the backend, then any thread may call `encode`. Which rules hold is for the two
kinds to say; here is what they have in common.
"""

from pathlib import Path

from jitney.core.backend import Vocabulary
from jitney.tokenizers.folder_tokenizer import FolderTokenizer
from jitney.tokenizers.gguf_tokenizer import GgufTokenizer
from jitney.tokenizers.texts import checked_bytes


class Tokenizer:
    """Text to tokens, and what the tokens are."""

    vocabulary: Vocabulary

    def __init__(self, path: Path) -> None:
        """Read what a model brings. Raises ModelError when it is missing, damaged or unknown."""
        self._kind: GgufTokenizer | FolderTokenizer
        self._kind = FolderTokenizer(path) if path.is_dir() else GgufTokenizer(path)
        self.vocabulary = self._kind.vocabulary

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Tokens of a text, none added; the names of control tokens become them when `special`."""
        checked_bytes(text)
        return self._kind.encode(text, special=special)
