"""Reads the vocabulary of a loaded model as plain values. Any thread.

Tests: tests/conformance/test_tokenizer.py.
"""

from jitney.backends.llamacpp.bindings import Model
from jitney.core.backend import Vocabulary


def read_vocabulary(model: Model) -> Vocabulary:
    """Every token as bytes, and the special tokens.

    Tokens of the type `USER_DEFINED` are text, such as markers of tool calls, which a completion
    must show.
    """
    tokens = range(model.vocabulary_count)
    return Vocabulary(
        pieces=tuple(model.pieces()),
        control=frozenset(token for token in tokens if model.is_control(token)),
        eos_tokens=tuple(token for token in tokens if model.ends_completion(token)),
        bos_token=model.bos_token(),
        adds_bos=model.adds_bos(),
        chat_template=model.chat_template(),
    )
