"""The model that jitney tries its backends with, for the tests: nothing is downloaded to test."""

from jitney.models.tiny import (
    CHAT_TEMPLATE,
    CONTROL_NAMES,
    MERGES,
    TinyShape,
    add_vocabulary,
    finish,
    write_tiny_gguf,
)
from jitney.models.token_names import byte_characters

__all__ = [
    "CHAT_TEMPLATE",
    "CONTROL_NAMES",
    "MERGES",
    "TinyShape",
    "add_vocabulary",
    "byte_characters",
    "finish",
    "write_tiny_gguf",
]
