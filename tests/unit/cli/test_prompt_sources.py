"""Tests of `jitney.cli.prompt_sources`: words and standard input to prompts."""

import io

import pytest

from jitney.cli.prompt_sources import read_prompts
from jitney.errors import InvalidRequest


def read(
    words: list[str], content: bytes = b"", *, lines: bool = False, is_terminal: bool = False
) -> list[str]:
    return read_prompts(words, lines=lines, stream=io.BytesIO(content), is_terminal=is_terminal)


def test_words_are_prompts_and_standard_input_is_left_alone() -> None:
    """Guards pipes: a prompt on the command line must not wait for input."""
    assert read(["a", "b"], b"never read") == ["a", "b"]


def test_a_sentence_about_a_model_file_is_a_prompt() -> None:
    """Guards people who ask about files: only a bare name is taken for one."""
    assert read(["What is in some.gguf"]) == ["What is in some.gguf"]


def test_standard_input_is_one_prompt_without_its_last_line_end() -> None:
    """Guards `echo hello | jitney run`: the line end is the shell's, not the person's."""
    assert read([], b"hello\nthere\n") == ["hello\nthere"]
    assert read(["first", "-"], b"second\r\n") == ["first", "second"]


def test_lines_are_prompts_of_their_own_and_empty_ones_are_none() -> None:
    """Guards files with a blank line at the end."""
    assert read([], "één\n\n  \ntwo".encode(), lines=True) == ["één", "two"]
    assert read(["zero", "-"], b"one\ntwo\n", lines=True) == ["zero", "one", "two"]


@pytest.mark.parametrize(
    ("words", "content", "options", "message"),
    [
        ([], b"", {"is_terminal": True}, "no prompt"),
        ([""], b"", {}, "empty"),
        (["models/some.gguf", "hello"], b"", {}, "give it with --model"),
        (["a", " "], b"", {}, "Prompt 2 is empty"),
        ([], b"", {}, "empty"),
        ([], b"\n\n", {"lines": True}, "no line"),
        ([], b"\xff\xfe\x00\x80", {}, "UTF-8"),
        ([], b"abc\0def", {}, "zero bytes"),
        (["-", "-"], b"x", {}, "only once"),
        (["a"], b"x", {"lines": True}, "--lines"),
    ],
)
def test_what_is_no_prompt_is_refused_in_a_sentence(
    words: list[str], content: bytes, options: dict[str, bool], message: str
) -> None:
    """Guards the model against nothing and against binary files."""
    with pytest.raises(InvalidRequest, match=message):
        read(words, content, **options)


def test_input_without_an_end_is_bounded() -> None:
    """Guards memory: `jitney run < /dev/zero` must not read for ever."""

    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            assert 0 < size < 10**8
            return b"a" * size

    with pytest.raises(InvalidRequest, match="more than"):
        read_prompts([], lines=False, stream=Endless(), is_terminal=False)  # type: ignore[arg-type]
