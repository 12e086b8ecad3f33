"""Reads prompts from the command line and standard input.

Refuses input that is not text, in a sentence. Reads a stream once, up to a limit. Main thread.
"""

from collections.abc import Sequence
from typing import BinaryIO

from jitney.core import limits
from jitney.errors import InvalidRequest

STDIN = "-"


def read_prompts(
    words: Sequence[str], *, lines: bool, stream: BinaryIO, is_terminal: bool
) -> list[str]:
    """All prompts in order; `-`, or no word at all, means the content of the stream."""
    if not words and is_terminal:
        raise InvalidRequest(
            'There is no prompt: write one, as in jitney run "Why is the sky blue?", or pipe one '
            "in.",
            "prompt",
        )
    if words.count(STDIN) > 1:
        raise InvalidRequest("Standard input can be read only once; give - once.", "prompt")
    if lines and words and STDIN not in words:
        raise InvalidRequest(
            "--lines is for standard input, and prompts were given instead; leave one out.",
            "prompt",
        )
    prompts: list[str] = []
    for word in words or [STDIN]:
        _refuse_model(word)
        if word != STDIN:
            prompts.append(word)
            continue
        text = read_text(stream)
        prompts += [each for each in text.splitlines() if each.strip()] if lines else [text]
    for number, prompt in enumerate(prompts, 1):
        if not prompt.strip():
            which = "The prompt" if len(prompts) == 1 else f"Prompt {number}"
            raise InvalidRequest(f"{which} is empty; there is nothing to answer.", "prompt")
    if not prompts:
        raise InvalidRequest("Standard input holds no line with a prompt on it.", "prompt")
    return prompts


def _refuse_model(word: str) -> None:
    """Refuse the name of a model: `serve` takes a model where `run` takes prompts."""
    if word.endswith(".gguf") and not any(character.isspace() for character in word):
        raise InvalidRequest(
            f"{word} is the name of a model and not a prompt; give it with --model.", "prompt"
        )


def read_text(stream: BinaryIO) -> str:
    """The whole stream as text, without its last line end."""
    # A character has up to four bytes.
    bytes_max = 4 * limits.PROMPT_CHARACTERS_MAX
    content = stream.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise InvalidRequest(
            f"Standard input holds more than {bytes_max} bytes, which is the limit.", "prompt"
        )
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"Standard input is not text in UTF-8: byte {error.start} cannot be read.", "prompt"
        ) from None
    if "\0" in text:
        raise InvalidRequest(
            "Standard input is not text: it holds zero bytes, as only binary files do.", "prompt"
        )
    return text.removesuffix("\n").removesuffix("\r")
