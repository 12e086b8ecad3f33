"""The bytes that names of tokens stand for."""

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


def test_names_are_spelled_as_llamacpp_does() -> None:
    """Guards damaged vocabularies, and the spaces of vocabularies that are merged by score."""
    assert bytes_of_characters("a日") == b"a[UNK_BYTE_0xe697a5a\xe6\x97\xa5]"
    assert bytes_without_marks("▁the▁") == b" the "


def test_a_byte_is_found_by_its_name_and_by_no_other() -> None:
    """Guards what falls back to bytes, and text that looks almost like it."""
    for byte in range(256):
        assert named_byte(byte_name(byte)) == bytes([byte])
    for name in ("<0x0>", "<0x0AA>", "0x0A", "<0xGG>", " <0x0A>"):
        assert named_byte(name) is None
