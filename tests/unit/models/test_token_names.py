"""The bytes that names of tokens stand for."""

import pytest

from jitney.models.token_names import (
    byte_characters,
    byte_name,
    bytes_of_characters,
    bytes_without_marks,
    named_byte,
)


def test_every_byte_has_a_character_of_its_own() -> None:
    """Guards texts that hold any byte."""
    characters = byte_characters()
    assert len(set(characters)) == 256
    assert bytes_of_characters("".join(characters)) == bytes(range(256))


def test_a_character_that_stands_for_no_byte_is_spelled_out() -> None:
    """Guards damaged vocabularies: llama.cpp writes the same."""
    assert bytes_of_characters("a日") == b"a[UNK_BYTE_0xe697a5a\xe6\x97\xa5]"


def test_marks_are_spaces() -> None:
    """Guards the spaces of vocabularies that are merged by score."""
    assert bytes_without_marks("▁the▁") == b" the "


@pytest.mark.parametrize("name", ["<0x0>", "<0x0AA>", "0x0A", "<0xGG>", " <0x0A>"])
def test_other_names_are_no_bytes(name: str) -> None:
    """Guards text that looks almost like the name of a byte."""
    assert named_byte(name) is None


def test_a_byte_is_found_by_its_name() -> None:
    """Guards what falls back to bytes."""
    assert [named_byte(byte_name(byte)) for byte in range(256)] == [
        bytes([byte]) for byte in range(256)
    ]
