"""Logprobs in the shapes of both of OpenAI's interfaces. Pure; any thread."""

from collections.abc import Sequence
from typing import Any

from jitney.core.backend import Vocabulary
from jitney.core.batch import LOGPROB_MIN, TokenLogprob
from jitney.text.detokenizer import Detokenizer

Json = dict[str, Any]  # Any: a JSON value


def chat_logprobs(logprobs: Sequence[TokenLogprob], vocabulary: Vocabulary) -> Json:
    """For chat: an object per token, with its bytes."""
    return {
        "content": [
            {
                **_chat_token(each.token, each.logprob, vocabulary),
                "top_logprobs": [
                    _chat_token(token, logprob, vocabulary) for token, logprob in each.top
                ],
            }
            for each in logprobs
        ],
        "refusal": None,
    }


def _chat_token(token: int, logprob: float, vocabulary: Vocabulary) -> Json:
    piece = _piece(token, vocabulary)
    return {
        "token": piece.decode("utf-8", errors="replace"),
        "logprob": max(logprob, LOGPROB_MIN),
        "bytes": list(piece),
    }


class LegacyLogprobs:
    """For completions: parallel lists, with each token's place in the text. One per choice.

    The first `silent_count` tokens have no text: the server added them.
    """

    def __init__(
        self, vocabulary: Vocabulary, skip_special: bool, *, silent_count: int = 0
    ) -> None:
        self._vocabulary = vocabulary
        self._detokenizer = Detokenizer(vocabulary, skip_special)
        self._offset = 0
        self._silent_count = silent_count

    def shaped(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> Json:
        """The next tokens. None is the logprob of a first token."""
        offsets = []
        for token in tokens:
            offsets.append(self._offset)
            text = self._detokenizer.push(token)
            if self._silent_count:
                self._silent_count -= 1
            else:
                self._offset += len(text)
        return {
            "tokens": [token_name(token, self._vocabulary) for token in tokens],
            "token_logprobs": [
                None if each is None else max(each.logprob, LOGPROB_MIN) for each in logprobs
            ],
            "top_logprobs": [None if each is None else self._top(each) for each in logprobs],
            "text_offset": offsets,
        }

    def _top(self, logprob: TokenLogprob) -> dict[str, float]:
        named = {
            token_name(token, self._vocabulary): max(value, LOGPROB_MIN)
            for token, value in logprob.top
        }
        # The token itself is always among them, as OpenAI has it.
        named.setdefault(
            token_name(logprob.token, self._vocabulary), max(logprob.logprob, LOGPROB_MIN)
        )
        return named


def token_name(token: int, vocabulary: Vocabulary) -> str:
    """A token as text, or its bytes if they are not whole characters, so that names differ."""
    piece = _piece(token, vocabulary)
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _piece(token: int, vocabulary: Vocabulary) -> bytes:
    return vocabulary.pieces[token] if token < len(vocabulary.pieces) else b""
