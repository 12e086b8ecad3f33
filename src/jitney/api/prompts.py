"""Reads the prompts that callers give into one form: `Prompt`. Pure; any thread.

The forms are those of vLLM's offline API: a text, a mapping with `prompt` or `prompt_token_ids`,
a list of tokens, or a list of any of these.

Tests: tests/unit/api/test_llm.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jitney.errors import InvalidRequest

PromptInput = str | Mapping[str, Any] | Sequence[int]
"""Any: the values of a mapping are checked when it is read."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Text, tokens or both. With both, the tokens are used and the text is for people."""

    text: str | None
    tokens: tuple[int, ...] | None


def read_prompts(value: PromptInput | Sequence[PromptInput]) -> list[Prompt]:
    """One prompt or a list of them. A list of whole numbers is one prompt."""
    if isinstance(value, str | Mapping):
        return [read_prompt(value)]
    if not isinstance(value, list | tuple):
        raise _refusal(value)
    if value and all(isinstance(each, int) for each in value):
        return [read_prompt(value)]
    return [read_prompt(each) for each in value]


def read_prompt(value: object) -> Prompt:
    """One prompt in any of its forms."""
    if isinstance(value, str):
        return Prompt(value, None)
    if isinstance(value, Mapping):
        return _read_mapping(value)
    if isinstance(value, list | tuple):
        return Prompt(None, tuple(value))
    raise _refusal(value)


def _read_mapping(value: Mapping[str, Any]) -> Prompt:
    unknown = [str(key) for key in value if key not in ("prompt", "prompt_token_ids")]
    if unknown:
        raise InvalidRequest(
            f"A prompt has the keys prompt or prompt_token_ids, and got {unknown[0][:80]!r}.",
            "prompt",
        )
    tokens, text = value.get("prompt_token_ids"), value.get("prompt")
    if isinstance(tokens, list | tuple):
        # vLLM allows a text beside its tokens, and uses the tokens.
        return Prompt(None, tuple(tokens))
    if tokens is None and isinstance(text, str):
        return Prompt(text, None)
    raise _refusal(value)


def _refusal(value: object) -> InvalidRequest:
    return InvalidRequest(
        'A prompt is a text, a list of tokens, {"prompt": text} or '
        f'{{"prompt_token_ids": tokens}}, and got {value!r:.80}.',
        "prompt",
    )
