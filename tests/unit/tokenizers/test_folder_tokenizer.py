"""The tokenizer of an exported folder: equal to the GGUF's, and strict about its files."""

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tokenizers", reason="the extra `openvino` is not installed")
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.errors import InvalidRequest
from jitney.tokenizers import folder_tokenizer
from jitney.tokenizers.tokenizer import ModelTokenizer, read_tokenizer
from tests.folders_for_tests import write_folder
from tests.models_for_tests import CHAT_TEMPLATE, TinyShape, byte_characters, write_tiny_gguf
from tests.unit.models.refusals import refusal_by

TEXTS = (
    "",
    " ",
    "the thin man, in a  hurry \n\n then",
    "It's 12345 né é…\x00 🚌 中文 \r\n\t",
    "<|im_end|> and <|im_start|>the<|im_end|>\n",
    "<|im_end|",
    "the<|im_end|><|endoftext|>",
)
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, shape=TinyShape(layers=1, width=32, heads=2, heads_kv=1, inner=32))
    return path


@pytest.fixture
def folder(tmp_path: Path, source: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    write_folder(path, source)
    return path


def change(path: Path, **values: Any) -> None:  # Any: whatever JSON holds
    """Set keys of a JSON file; None takes one out."""
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps({key: each for key, each in content.items() if each is not None}))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
@pytest.mark.parametrize("special", [True, False])
def test_tokens_are_those_of_the_gguf(
    folder: Path, source: Path, text: str, *, special: bool
) -> None:
    """Guards prompts: the same model must read the same tokens whichever way it came."""
    tokenizer = read_tokenizer(folder)
    assert tokenizer.encode(text, special=special) == read_tokenizer(source).encode(
        text, special=special
    )


def test_the_vocabulary_is_that_of_the_gguf(folder: Path, source: Path) -> None:
    """Guards bytes, control tokens, endings and the template."""
    assert read_tokenizer(folder).vocabulary == read_tokenizer(source).vocabulary


def test_long_texts_have_the_tokens_of_the_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the windows that long texts are read in, and names cut by their edges."""
    text = "".join(f"the {number}  \n man<|im_end|>in\n" for number in range(60))
    whole = read_tokenizer(folder)
    expected = {special: whole.encode(text, special=special) for special in (True, False)}
    for size in (7, 40, 64):
        monkeypatch.setattr(folder_tokenizer, "WINDOW_CHARACTERS", size)
        cut = read_tokenizer(folder)
        for special, tokens in expected.items():
            assert cut.encode(text, special=special) == tokens


def test_special_tokens_that_the_vocabulary_would_make_are_spelled_out(folder: Path) -> None:
    """Guards chats against a vocabulary whose merges write the structure."""
    path = folder / "tokenizer.json"
    model = json.loads(path.read_text())["model"]
    characters = [*STOP]
    grown = ["".join(characters[:end]) for end in range(2, len(characters) + 1)]
    vocabulary = model["vocab"]
    for name in grown[:-1]:
        vocabulary.setdefault(name, len(vocabulary))
    merges = [[*pair] for pair in zip((characters[0], *grown), characters[1:], strict=False)]
    change(path, model={**model, "merges": merges}, pre_tokenizer=byte_level(use_regex=False))
    change(folder / "config.json", vocab_size=len(vocabulary))
    tokenizer = read_tokenizer(folder)
    tokens = tokenizer.encode(f"a{STOP}", special=False)
    assert not tokenizer.vocabulary.control & set(tokens)
    assert b"".join(tokenizer.vocabulary.pieces[each] for each in tokens) == f"a{STOP}".encode()


def test_added_tokens_are_text_unless_they_are_special(folder: Path) -> None:
    """Guards what stands inside a name: as text it merges like any other."""
    path = folder / "tokenizer.json"
    added = json.loads(path.read_text())["added_tokens"]
    count = len(read_tokenizer(folder).vocabulary.pieces)
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added.append({"id": count, "content": "<the>", "special": True, **usual})
    added.append({"id": count + 1, "content": "a tool…", "special": False, **usual})
    change(path, added_tokens=added)
    change(folder / "config.json", vocab_size=count + 2)
    tokenizer = read_tokenizer(folder)
    assert shown(tokenizer, "<the>a tool…") == [b"<", b"the", b">", "a tool…".encode()]
    assert tokenizer.encode("<the>a tool…", special=True) == [count, count + 1]
    assert {count, count + 1} & tokenizer.vocabulary.control == {count}


def byte_level(**values: Any) -> dict[str, Any]:
    usual = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {**usual, "use_regex": True, **values}


def test_the_library_does_not_cut_or_fill_up(folder: Path) -> None:
    """Guards prompts against settings meant for training."""
    padding = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": END,
    }
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    before = read_tokenizer(folder).encode("the man in the", special=False)
    change(folder / "tokenizer.json", padding=padding, truncation=cut)
    assert read_tokenizer(folder).encode("the man in the", special=False) == before


def scored(**extra: Any) -> dict[str, Any]:
    """A tokenizer of the kind that marks spaces and falls back to bytes."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += ["▁", "a", "b", "<", "/", "s", ">", "ab", "▁ab"]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    steps = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    ]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": at, "content": names[at], "special": True, **special} for at in range(3)
        ],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "byte_fallback": True,
            "vocab": {name: at for at, name in enumerate(names)},
            "merges": [["a", "b"], ["▁", "ab"]],
            **extra,
        },
    }


def shown(tokenizer: ModelTokenizer, text: str, *, special: bool = False) -> list[bytes]:
    pieces = tokenizer.vocabulary.pieces
    return [pieces[token] for token in tokenizer.encode(text, special=special)]


def test_marked_spaces_and_bytes_to_fall_back_to(folder: Path) -> None:
    """Guards the other kind: Llama 2 and its kin."""
    (folder / "tokenizer.json").write_text(json.dumps(scored()))
    tokenizer = read_tokenizer(folder)
    assert shown(tokenizer, "ab é") == [b" ab", b" ", b"\xc3", b"\xa9"]
    assert tokenizer.encode("</s>", special=True) == [2]
    assert not tokenizer.vocabulary.control & set(tokenizer.encode("</s>", special=False))
    assert tokenizer.vocabulary.control == {0, 1, 2}


def test_endings_are_those_that_any_file_names(folder: Path) -> None:
    """Guards against answers that do not end."""
    assert read_tokenizer(folder).vocabulary.eos_tokens == (0, 2)
    (folder / "generation_config.json").unlink()
    change(folder / "config.json", eos_token_id=1)
    assert read_tokenizer(folder).vocabulary.eos_tokens == (1, 2)
    change(folder / "config.json", eos_token_id=[0, 1, 99_999, "a"])
    assert read_tokenizer(folder).vocabulary.eos_tokens == (0, 1, 2)
    (folder / "tokenizer_config.json").unlink()
    change(folder / "config.json", eos_token_id=None)
    assert read_tokenizer(folder).vocabulary.eos_tokens == ()


def test_the_first_token_is_added_where_a_file_or_the_tokenizer_says_so(folder: Path) -> None:
    """Guards models that answer badly without it, or with two."""
    config, path = folder / "tokenizer_config.json", folder / "tokenizer.json"
    vocabulary = read_tokenizer(folder).vocabulary
    assert (vocabulary.bos_token, vocabulary.adds_bos) == (1, False)
    change(config, add_bos_token=True)
    assert read_tokenizer(folder).vocabulary.adds_bos
    template = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": START, "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {START: {"id": START, "ids": [1], "tokens": [START]}},
    }
    change(path, post_processor=template)
    change(config, add_bos_token=None)
    tokenizer = read_tokenizer(folder)
    assert tokenizer.vocabulary.adds_bos
    assert tokenizer.encode("the", special=True) == [shown_token(tokenizer, b"the")]
    change(config, add_bos_token=False)
    assert not read_tokenizer(folder).vocabulary.adds_bos
    change(config, add_bos_token=True, bos_token=None)
    change(folder / "config.json", bos_token_id=None)
    vocabulary = read_tokenizer(folder).vocabulary
    assert (vocabulary.bos_token, vocabulary.adds_bos) == (None, False)


def shown_token(tokenizer: ModelTokenizer, piece: bytes) -> int:
    return tokenizer.vocabulary.pieces.index(piece)


def test_the_template_is_found_wherever_exporters_put_it(folder: Path) -> None:
    """Guards chats: without a template they are refused."""
    config = folder / "tokenizer_config.json"
    assert read_tokenizer(folder).vocabulary.chat_template == CHAT_TEMPLATE
    named = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    change(config, chat_template=named)
    assert read_tokenizer(folder).vocabulary.chat_template == "d"
    (folder / "chat_template.jinja").write_text("own")
    assert read_tokenizer(folder).vocabulary.chat_template == "own"
    (folder / "chat_template.jinja").unlink()
    change(config, chat_template=None)
    assert read_tokenizer(folder).vocabulary.chat_template is None


def test_a_model_may_have_more_tokens_than_its_tokenizer(folder: Path) -> None:
    """Guards sampling: logits have a column for each token of the model."""
    count = len(read_tokenizer(folder).vocabulary.pieces)
    change(folder / "config.json", vocab_size=count + 5)
    pieces = read_tokenizer(folder).vocabulary.pieces
    assert len(pieces) == count + 5
    assert pieces[count:] == (b"",) * 5
    change(folder / "config.json", vocab_size=None)
    assert len(read_tokenizer(folder).vocabulary.pieces) == count


def test_half_of_a_surrogate_pair_is_refused(folder: Path) -> None:
    """Guards native code against what is no text."""
    with pytest.raises(InvalidRequest, match="surrogate"):
        read_tokenizer(folder).encode("a\ud800", special=False)


def refusal(folder: Path) -> str:
    return refusal_by(read_tokenizer, folder)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    """Guards against a traceback from a folder that was copied in part."""
    (folder / name).unlink()
    assert f"{folder / name} cannot be read" in refusal(folder)
    assert "fetch or export" in refusal(folder)
    (folder / name).mkdir()
    assert refusal(folder).endswith("cannot be read: Is a directory.")


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "config.json", "tokenizer_config.json", "generation_config.json"]
)
@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 200_000])
def test_a_damaged_file_is_named(folder: Path, name: str, content: bytes) -> None:
    """Guards against a traceback from a download that was cut short."""
    (folder / name).write_bytes(content)
    assert str(folder / name) in refusal(folder)


def test_a_file_without_end_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory."""
    monkeypatch.setattr(folder_tokenizer, "TOKENIZER_BYTES_MAX", 1000)
    assert "is larger than 1000 bytes" in refusal(folder)
    monkeypatch.undo()
    (folder / "chat_template.jinja").write_bytes(b"x" * (folder_tokenizer.TEMPLATE_BYTES_MAX + 1))
    assert "chat_template.jinja is larger than" in refusal(folder)


VOCABULARY = {name: at for at, name in enumerate(byte_characters())}


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        ({"model": None}, "is not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "x"]]}}, "not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "is not a tokenizer"),
        ({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": []}, "no tokens"),
        (
            {"model": {"type": "BPE", "vocab": {"a": 2**31}, "merges": []}, "added_tokens": []},
            "has a token 2147483648",
        ),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "nor falls back to bytes"),
        ({"pre_tokenizer": {"type": "NoSuch"}}, "is not a tokenizer"),
        (
            {
                "model": {
                    "type": "BPE",
                    "vocab": VOCABULARY,
                    "merges": [],
                    "byte_fallback": True,
                },
                "pre_tokenizer": None,
            },
            "no token for some byte",
        ),
    ],
)
def test_what_is_no_tokenizer_is_refused(
    folder: Path, stored: dict[str, Any], sentence: str
) -> None:
    """Guards requests: they would fail one by one, or read other tokens."""
    change(folder / "tokenizer.json", **stored)
    assert sentence in refusal(folder)


@pytest.mark.parametrize("count", [3, "many", 2**40, True])
def test_a_vocabulary_that_does_not_fit_the_model_is_refused(folder: Path, count: object) -> None:
    """Guards the embedding, which would be read beyond its end."""
    change(folder / "config.json", vocab_size=count)
    assert "says that the vocabulary has" in refusal(folder)
