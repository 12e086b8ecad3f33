"""The header reader: what it reads of a good file, and what it says of every bad one."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jitney.errors import ModelError
from jitney.models import gguf
from jitney.models.gguf import read_header
from jitney.models.gguf_fields import ELEMENTS_MAX, READ_BYTES_MAX
from jitney.models.gguf_vocabulary import read_vocabulary
from tests.hybrids_for_tests import HYBRIDS, write_hybrid
from tests.models_for_tests import TinyShape, write_tiny_gguf
from tests.unit.models.refusals import refusal_by


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path, shape=TinyShape(layers=1, width=32, heads=2, heads_kv=1, inner=32))
    return path.read_bytes()


def refusal(path: Path) -> str:
    return refusal_by(read_header, path)


def crafted(keys: bytes = b"", *, key_count: int = 0, tensor_count: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, key_count) + keys


def key(name: str, kind: int, value: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


ARCHITECTURE = key("general.architecture", 8, struct.pack("<Q", 5) + b"llama")


def test_reads_the_sizes_of_a_good_file(tmp_path: Path) -> None:
    """Wrong sizes would give a wrong memory budget."""
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    header = read_header(path)
    assert header.architecture == "llama"
    assert header.metadata["general.name"] == "tiny"
    assert header.context_length == 512
    assert header.layer_count == 2
    assert header.head_count == 4
    # 2 layers, 2 heads, 32 numbers for a key and 32 for a value, 2 bytes each
    assert header.kv_bytes_per_token == 2 * 2 * (32 + 32) * 2
    assert header.head_lengths == (32, 32)
    assert header.file_bytes == path.stat().st_size
    # 268 tokens, a width of 128, 64 of it for keys and values, and 256 inside
    layer = 2 * 128 + 2 * 128 * 128 + 2 * 64 * 128 + 3 * 256 * 128
    assert header.parameter_count == 2 * 268 * 128 + 128 + 2 * layer
    assert len(header.tensor_kinds) == 3 + 9
    assert {"token_embd.weight", "attn_q.weight", "ffn_down.weight"} < header.tensor_kinds
    assert "tokenizer.ggml.tokens" not in header.metadata


def test_a_path_without_a_file_is_a_sentence(tmp_path: Path) -> None:
    """A wrong path, or the folder of a download, must not be a traceback."""
    assert "does not exist" in refusal(tmp_path / "none.gguf")
    assert "folder" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "not a GGUF: it looks like a Git LFS"),
        (b"PK\x03\x04whatever", "not a GGUF: it looks like a zip archive"),
        (b"<!DOCTYPE html><html>", "not a GGUF: it looks like a web page"),
        (b'\x08\x00\x00\x00\x00\x00\x00\x00{"a":1}', "not a GGUF: it looks like a safetensors"),
        (b"hello there, this is text", "not a GGUF: it looks like text"),
        (bytes(100), "not a GGUF: it looks like zeros"),
        (bytes(range(200, 250)), "not a GGUF: it looks like other data"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), "version 99"),
        (b"GGUF" + struct.pack("<IQQ", 3 << 24, 0, 0), "big-endian"),
        (crafted(key_count=2**63), "keys"),
        (crafted(tensor_count=2**63), "tensors"),
        (crafted(struct.pack("<Q", 2**63), key_count=1) + bytes(64), "claims a text"),
        (crafted(key("a", 8, struct.pack("<Q", 2**62)), key_count=1), "claims a text"),
        (crafted(key("a", 99, bytes(16)), key_count=1), "unknown type 99"),
        (crafted(key("a", 9, struct.pack("<IQ", 9, 1)), key_count=1), "type 9"),
        (crafted(key("a", 9, struct.pack("<IQ", 0, 2**40)), key_count=1), "claims a text or array"),
        (crafted(key("a", 4, bytes(4)) * 2, key_count=2), "twice"),
        (crafted(key("a", 4, bytes(4)), key_count=1), "architecture"),
        (
            crafted(ARCHITECTURE + struct.pack("<Q", 1) + b"t" + struct.pack("<I", 9) + bytes(99),
                    key_count=1, tensor_count=1),
            "9 dimensions",
        ),
        (
            crafted(ARCHITECTURE + struct.pack("<Q", 1) + b"t"
                    + struct.pack("<IQQIQ", 2, 2**40, 2**40, 0, 0) + bytes(99),
                    key_count=1, tensor_count=1),
            "weights",
        ),
        (
            crafted(ARCHITECTURE + struct.pack("<Q", 1) + b"t"
                    + struct.pack("<IQIQ", 1, 8, 0, 4096) + bytes(99),
                    key_count=1, tensor_count=1),
            "cut short",
        ),
        (
            crafted(key("general.alignment", 4, struct.pack("<I", 0)) + ARCHITECTURE,
                    key_count=2, tensor_count=0),
            "alignment",
        ),
    ],
)  # fmt: skip
def test_bad_content_is_refused(tmp_path: Path, content: bytes, sentence: str) -> None:
    """Says what another file looks like. Counts and lengths must not make us allocate, loop or read
    beyond the file."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert sentence in refusal(path)


def test_a_header_is_read_once_until_the_file_changes(
    tmp_path: Path, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the time of a start, which needs the header several times."""
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny)
    header = read_header(path)
    with monkeypatch.context() as patch:
        patch.setattr(gguf, "read_fields", lambda *_: pytest.fail("it is read again"))
        assert read_header(path) is header
    path.write_bytes(tiny + bytes(32))
    assert read_header(path).file_bytes == len(tiny) + 32
    path.write_bytes(tiny[: len(tiny) // 2])
    assert f" bytes and has {len(tiny) // 2}; fetch it again." in refusal(path)


def test_a_file_cut_in_its_header_is_to_be_fetched_again(tmp_path: Path) -> None:
    """Guards the first kilobytes of a download: what they claim is true of the whole file."""
    path = tmp_path / "model.gguf"
    words = struct.pack("<Q", 1) + b"w"
    listed = key("tokens", 9, struct.pack("<IQ", 8, 49_152) + words * 600)
    for content in (
        crafted(key_count=33),
        crafted(key_count=1, tensor_count=272) + bytes(5_000),
        crafted(listed, key_count=1),
        crafted(key("template", 8, struct.pack("<Q", 9_000)), key_count=1),
    ):
        path.write_bytes(content)
        assert refusal(path).endswith("; fetch it again."), refusal(path)


def test_every_truncation_is_refused(tmp_path: Path, tiny: bytes) -> None:
    """No prefix of a good file may pass for a whole one."""
    path = tmp_path / "model.gguf"
    data_end = len(tiny.rstrip(b"\0"))
    for length in [*range(400), *range(400, data_end - 64, 997)]:
        path.write_bytes(tiny[:length])
        assert refusal(path)


def holes(path: Path, *pieces: bytes | int) -> None:
    """Write a file; a number is so many bytes that take no room on the disk."""
    with path.open("wb") as file:
        for piece in pieces:
            if isinstance(piece, int):
                file.seek(piece, 1)
            else:
                file.write(piece)
        file.truncate(file.tell())


def long_texts(count: int) -> list[bytes | int]:
    each = [(key(f"t{at}", 8, struct.pack("<Q", 2**20)), 2**20) for at in range(count)]
    return [piece for pair in each for piece in pair]


def long_names(count: int, rest: bytes) -> list[bytes | int]:
    """Names without a single letter, each of another length, and what follows each."""
    each = [(struct.pack("<Q", length), length, rest) for length in range(65_535 - count, 65_535)]
    return [piece for pieces in each for piece in pieces]


def empty_texts(name: str, count: int) -> list[bytes | int]:
    return [key(name, 9, struct.pack("<IQ", 8, count)), count * 8]


def short_lists(count: int) -> list[bytes | int]:
    each = [(key(f"l{at}", 9, struct.pack("<IQ", 0, 4_096)), 4_096) for at in range(count)]
    return [piece for pair in each for piece in pair]


MANY = READ_BYTES_MAX // 65_000
TENSOR = struct.pack("<IQIQ", 1, 1, 0, 0)


@pytest.mark.parametrize(
    ("pieces", "sentence"),
    [
        ([crafted(key_count=65), *long_texts(65)], "take more than"),
        ([crafted(key_count=MANY), *long_names(MANY, struct.pack("<II", 4, 7))], "take more than"),
        ([crafted(ARCHITECTURE, key_count=1, tensor_count=MANY), *long_names(MANY, TENSOR), 64],
         "take more than"),
        ([crafted(key_count=1), *empty_texts("a", ELEMENTS_MAX + 1)], "elements"),
        ([crafted(key_count=2), *empty_texts("a", 10), *empty_texts("b", ELEMENTS_MAX)],
         "elements"),
        ([crafted(key_count=1_025), *short_lists(1_025)], "elements"),
    ],
    ids=["texts", "keys", "tensors", "one list", "two lists", "short lists"],
)  # fmt: skip
def test_a_header_is_bounded_as_a_whole(
    tmp_path: Path, pieces: list[bytes | int], sentence: str
) -> None:
    """Guards memory and time: each part of the header is small enough, and all of them together
    took 2 GB and half a minute, from a file of holes that takes 7 MB on the disk."""
    path = tmp_path / "model.gguf"
    holes(path, *pieces)
    assert sentence in refusal(path)


def test_parts_are_bounded_together(tmp_path: Path) -> None:
    """Guards against the same in a thousand files."""
    count = ELEMENTS_MAX // 2 + 1
    for number in range(2):
        split = key("split.count", 4, struct.pack("<I", 2))
        split += key("split.no", 4, struct.pack("<I", number))
        path = tmp_path / f"m-0000{number + 1}-of-00002.gguf"
        holes(path, crafted(ARCHITECTURE + split, key_count=4), *empty_texts("a", count))
    with pytest.raises(ModelError, match=r"m-00002-of-00002.*elements"):
        read_header(tmp_path / "m-00001-of-00002.gguf")


def test_the_largest_vocabularies_pass(tmp_path: Path) -> None:
    """Guards real models: twice the tokens of the largest, with types, scores, merges and a long
    chat template."""
    count = 2 * 262_144

    def listed(name: str, kind: int, values: bytes, count: int = count) -> bytes:
        return key(f"tokenizer.ggml.{name}", 9, struct.pack("<IQ", kind, count) + values)

    words = b"".join(struct.pack("<Q", 13) + b"word-%08d" % at for at in range(count))
    template = "x" * 500_000
    path = tmp_path / "model.gguf"
    holes(
        path,
        crafted(ARCHITECTURE, key_count=6),
        listed("tokens", 8, words),
        listed("token_type", 5, bytes(4 * count)),
        listed("scores", 6, bytes(4 * count)),
        listed("merges", 8, words * 3, 3 * count),
        key("tokenizer.chat_template", 8, struct.pack("<Q", len(template)) + template.encode()),
    )
    assert read_header(path).architecture == "llama"
    stored = read_vocabulary(path)
    assert (len(stored.tokens), len(stored.merges)) == (count, 3 * count)
    assert stored.chat_template == template


@settings(max_examples=300, deadline=None)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, 9_000), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4
    ),
    cut=st.none() | st.integers(0, 9_000),
)
def test_mutated_headers_only_raise_model_errors(
    tmp_path_factory: pytest.TempPathFactory,
    tiny: bytes,
    edits: list[tuple[int, bytes]],
    cut: int | None,
) -> None:
    """Damage anywhere in the header is a header or a ModelError, never another exception."""
    content = bytearray(tiny)
    for position, patch in edits:
        content[position : position + len(patch)] = patch
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(bytes(content[:cut]))
    try:
        header = read_header(path)
    except ModelError:
        return
    assert header.architecture
    assert header.kv_bytes_per_token >= 0


def test_keys_and_values_are_counted_in_layers_that_have_them(tmp_path: Path) -> None:
    """Guards the memory of models whose header does not say which layers have attention."""
    hybrid = HYBRIDS["qwen35"]
    silent = {key: value for key, value in hybrid.metadata.items() if "interval" not in key}
    path = tmp_path / "hybrid.gguf"
    write_hybrid(path, replace(hybrid, metadata=silent))
    assert read_header(path).kv_bytes_per_token == 1 * 2 * 2 * 32 * 2
