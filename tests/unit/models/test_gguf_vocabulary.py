"""The reader of vocabularies: what it reads of a good file, and what it says of every bad one."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.errors import ModelError
from jitney.models.gguf_fields import ELEMENTS_MAX, READ_BYTES_MAX, TEXT_BYTES_MAX
from jitney.models.gguf_vocabulary import TOKEN_CHARACTERS_MAX, read_vocabulary
from tests.unit.models.refusals import refusal_by

BOOL, STRING, ARRAY = 7, 8, 9
UNSIGNED, INTEGER, FLOAT = 4, 5, 6


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def texts(*values: str | bytes) -> bytes:
    return struct.pack("<IQ", STRING, len(values)) + b"".join(map(text, values))


def numbers(kind: int, form: str, *values: float) -> bytes:
    return struct.pack(f"<IQ{len(values)}{form}", kind, len(values), *values)


GgufFields = dict[str, tuple[int, bytes]]


def good() -> GgufFields:
    """The keys of a small vocabulary that lacks nothing."""
    ids = {"bos": 0, "eos": 1, "eot": 2, "middle": 3, "unknown": 9}
    return {
        "general.architecture": (STRING, text("llama")),
        "general.name": (STRING, text("Tiny")),
        "tokenizer.ggml.model": (STRING, text("gpt2")),
        "tokenizer.ggml.pre": (STRING, text("qwen2")),
        "tokenizer.ggml.tokens": (ARRAY, texts("a", "b", "ab", "", "é")),
        "tokenizer.ggml.token_type": (ARRAY, numbers(INTEGER, "i", 1, 1, 1, 3, 1)),
        "tokenizer.ggml.scores": (ARRAY, numbers(FLOAT, "f", 0, -1, -2.5, 0, 0)),
        "tokenizer.ggml.merges": (ARRAY, texts("a b")),
        "tokenizer.ggml.add_bos_token": (BOOL, b"\1"),
        "tokenizer.ggml.add_space_prefix": (BOOL, b"\0"),
        "tokenizer.chat_template": (STRING, text("{{ messages }}")),
        **{
            f"tokenizer.ggml.{role}_token_id": (UNSIGNED, struct.pack("<I", token))
            for role, token in ids.items()
        },
    }


def gguf_of(fields: GgufFields) -> bytes:
    """A GGUF of those keys and no weights."""
    keys = (text(key) + struct.pack("<I", kind) + value for key, (kind, value) in fields.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + b"".join(keys)


def refusal(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return refusal_by(read_vocabulary, path)


def test_reads_every_value(tmp_path: Path) -> None:
    """Guards each field against being read from another's key."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_of(good()))
    stored = read_vocabulary(path)
    assert (stored.path, stored.name) == (path, "Tiny")
    assert (stored.model, stored.pre) == ("gpt2", "qwen2")
    assert stored.tokens == ("a", "b", "ab", "[EMPTY_3]", "é")
    assert stored.types == (1, 1, 1, 3, 1)
    assert stored.scores == (0, -1, -2.5, 0, 0)
    assert stored.merges == ("a b",)
    assert (stored.adds_bos, stored.adds_space_prefix) == (True, False)
    assert stored.chat_template == "{{ messages }}"


def test_roles_outside_the_vocabulary_are_passed_over(tmp_path: Path) -> None:
    """Guards lists indexed by id: such files are about, and llama.cpp takes them."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_of(good()))
    assert read_vocabulary(path).roles == {"bos": 0, "eos": 1, "eot": 2, "fim_mid": 3}


def test_what_is_not_said_is_empty(tmp_path: Path) -> None:
    """Guards old files, which say little."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_of({"tokenizer.ggml.tokens": good()["tokenizer.ggml.tokens"]}))
    stored = read_vocabulary(path)
    assert (stored.name, stored.model, stored.pre) == ("", "", "")
    assert (stored.types, stored.scores, stored.merges, stored.roles) == ((), (), (), {})
    assert (stored.adds_bos, stored.adds_space_prefix, stored.chat_template) == (None, None, None)


def test_a_vocabulary_longer_than_what_headers_keep_is_read_whole(tmp_path: Path) -> None:
    """Guards against the shortcut of the header reader, which skips long arrays."""
    path = tmp_path / "model.gguf"
    tokens = [f"token {number}" for number in range(20_000)]
    fields = {
        "tokenizer.ggml.tokens": (ARRAY, texts(*tokens)),
        "tokenizer.ggml.token_type": (ARRAY, numbers(INTEGER, "i", *range(20_000))),
    }
    path.write_bytes(gguf_of(fields))
    stored = read_vocabulary(path)
    assert list(stored.tokens) == tokens
    assert stored.types == tuple(range(20_000))


def with_key(key: str, kind: int, value: bytes) -> bytes:
    """A good file but for one key, which stands last."""
    fields = good()
    fields.pop(f"tokenizer.{key}", None)
    return gguf_of({**fields, f"tokenizer.{key}": (kind, value)})


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda: gguf_of({}), "no tokens"),
        (lambda: with_key("ggml.tokens", ARRAY, texts()), "no tokens"),
        (lambda: with_key("ggml.tokens", ARRAY, texts("a", "b", "a")), "the same"),
        (lambda: with_key("ggml.tokens", ARRAY, texts("", "[EMPTY_0]")), "the same"),
        (lambda: with_key("ggml.tokens", ARRAY, texts("a", b"\xff")), "element 1 of"),
        (lambda: with_key("ggml.tokens", ARRAY, numbers(INTEGER, "i", 1)), "`str`, got `int`"),
        (lambda: with_key("ggml.tokens", STRING, text("a")), "`array`, got `str`"),
        (lambda: with_key("ggml.tokens", ARRAY, texts("x" * (TOKEN_CHARACTERS_MAX + 1))),
         "characters"),
        (lambda: with_key("ggml.merges", UNSIGNED, bytes(4)), "`array`, got `int`"),
        (lambda: with_key("ggml.merges", ARRAY, numbers(FLOAT, "f", 1)), "`str`, got `float`"),
        (lambda: with_key("ggml.token_type", ARRAY, numbers(INTEGER, "i", 1)), "1 elements for 5"),
        (lambda: with_key("ggml.token_type", ARRAY, numbers(FLOAT, "f", *[1] * 5)),
         "`int`, got `float`"),
        (lambda: with_key("ggml.token_type", ARRAY, texts(*"abcde")), "`int`, got `str`"),
        (lambda: with_key("ggml.token_type", INTEGER, bytes(4)), "`array`, got `int`"),
        (lambda: with_key("ggml.scores", ARRAY, numbers(FLOAT, "f", 0)), "1 elements for 5"),
        (lambda: with_key("ggml.scores", ARRAY, numbers(FLOAT, "f", *[float("nan")] * 5)),
         "not a number"),
        (lambda: with_key("ggml.scores", ARRAY, numbers(BOOL, "?", *[1] * 5)), "got `bool`"),
        (lambda: with_key("ggml.model", UNSIGNED, bytes(4)), "tokenizer.ggml.model"),
        (lambda: with_key("ggml.pre", BOOL, b"\0"), "`str`, got `bool`"),
        (lambda: with_key("chat_template", ARRAY, texts("a")), "tokenizer.chat_template"),
        (lambda: with_key("chat_template", STRING, text("x" * (TEXT_BYTES_MAX + 1))), "bytes"),
        (lambda: with_key("ggml.add_bos_token", UNSIGNED, bytes(4)), "`bool | null`, got `int`"),
        (lambda: with_key("ggml.eos_token_id", STRING, text("1")), "`int`, got `str`"),
        (lambda: with_key("ggml.eos_token_id", BOOL, b"\1"), "`int`, got `bool`"),
        (lambda: with_key("ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 2**40)),
         "text or array"),
        (lambda: with_key("ggml.tokens", ARRAY, struct.pack("<IQ", STRING, 300)), "cut short"),
        (lambda: with_key("ggml.tokens", ARRAY, struct.pack("<IQQ", STRING, 1, 2**62)),
         "text or array"),
        (lambda: with_key("ggml.tokens", ARRAY, struct.pack("<IQQ", STRING, 1, 300)), "cut short"),
        (lambda: with_key("ggml.tokens", ARRAY, struct.pack("<IQ", 99, 1)), "type 99"),
    ],
)  # fmt: skip
def test_bad_values_are_refused(
    tmp_path: Path, content: Callable[[], bytes], sentence: str
) -> None:
    """Counts, lengths and types from a file must not make us allocate, loop or stumble later."""
    assert sentence in refusal(tmp_path / "model.gguf", content())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tokenizer.ggml.tokens": (ARRAY, struct.pack("<IQ", STRING, ELEMENTS_MAX + 1))},
         "elements"),
        ({"tokenizer.ggml.tokens": (ARRAY, struct.pack("<IQQ", STRING, 1, READ_BYTES_MAX))},
         "take more than"),
    ],
)  # fmt: skip
def test_lists_that_fit_the_file_and_no_memory_are_refused(
    tmp_path: Path, fields: GgufFields, sentence: str
) -> None:
    """A file of holes costs its maker nothing, and would cost us all memory."""
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_of(fields))
    with path.open("r+b") as file:
        file.truncate(2**32)
    with pytest.raises(ModelError, match=sentence):
        read_vocabulary(path)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    """No prefix of a good file may pass for a whole one."""
    content = gguf_of(good())
    for length in range(len(content)):
        assert refusal(tmp_path / "model.gguf", content[:length])


@settings(max_examples=400, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 900), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4
    ),
    cut=st.none() | st.integers(0, 900),
)
def test_mutated_files_only_raise_model_errors(
    tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]], cut: int | None
) -> None:
    """Damage anywhere is a vocabulary or a ModelError, never another exception."""
    content = bytearray(gguf_of(good()))
    for position, patch in edits:
        content[position : position + len(patch)] = patch
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(bytes(content[:cut]))
    try:
        stored = read_vocabulary(path)
    except ModelError:
        return
    count = len(stored.tokens)
    assert len(set(stored.tokens)) == count
    assert len(stored.types) in (0, count)
    assert len(stored.scores) in (0, count)
    assert all(0 <= token < count for token in stored.roles.values())
