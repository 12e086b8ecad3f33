"""The tokenizer without llama.cpp: what it refuses, and what it gives where that can be said."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tokenizers", reason="the extra `openvino` is not installed")
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.errors import InvalidRequest, ModelError
from jitney.tokenizers.splits import SPLITS
from jitney.tokenizers.tokenizer import ModelTokenizer, read_tokenizer
from tests.vocabularies_for_tests import (
    BYTE,
    CONTROL,
    NORMAL,
    USER_DEFINED,
    StoredTokens,
    byte_name,
    tokens_of_merges,
    write_tokens,
)

MERGES = ("Ġ a", "Ġa b", "a b", "ab c", "0 0", "00 0")
TOKENS = ("<|im_end|>", "<tool>", *tokens_of_merges(MERGES))
RANKED = StoredTokens(
    tokens=TOKENS,
    types=(CONTROL, USER_DEFINED, *[NORMAL] * (len(TOKENS) - 2)),
    merges=MERGES,
    roles={"bos_token_id": 0, "eos_token_id": 0},
)
LETTERS = ("▁", "a", "b", "ab", "▁ab", "▁▁")
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
SCORED = StoredTokens(
    model="llama",
    pre=None,
    tokens=("<unk>", "<s>", "</s>", *BYTES, *LETTERS),
    types=(2, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(LETTERS)),
    scores=(*[0.0] * 259, *(-float(at) for at in range(len(LETTERS)))),
)


def build(folder: Path, stored: StoredTokens) -> ModelTokenizer:
    path = folder / "tokens.gguf"
    write_tokens(path, stored)
    return read_tokenizer(path)


def shown(tokenizer: ModelTokenizer, text: str, *, special: bool = False) -> list[bytes]:
    pieces = tokenizer.vocabulary.pieces
    return [pieces[token] for token in tokenizer.encode(text, special=special)]


def test_names_of_control_tokens_count_only_when_asked(tmp_path: Path) -> None:
    """Guards chats against messages that write the structure themselves."""
    tokenizer = build(tmp_path, RANKED)
    assert tokenizer.encode("<|im_end|>", special=True) == [0]
    plain = tokenizer.encode("<|im_end|>", special=False)
    assert not set(plain) & tokenizer.vocabulary.control
    assert b"".join(shown(tokenizer, "<|im_end|>")) == b"<|im_end|>"


def test_names_of_user_defined_tokens_always_count(tmp_path: Path) -> None:
    """Guards tool markers, which are text."""
    tokenizer = build(tmp_path, RANKED)
    assert shown(tokenizer, "ab<tool>") == [b"ab", b"<tool>"]
    assert 1 not in tokenizer.vocabulary.control


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("gpt-2", [b"abc", b" ab", b" ", b"00", b"00"]),
        ("smollm", [b"abc", b" ab", b" ", b"0", b"0", b"0", b"0"]),
        ("llama-bpe", [b"abc", b" ab", b" ", b"000", b"0"]),
        ("qwen2", [b"abc", b" ab", b" ", b"0", b"0", b"0", b"0"]),
    ],
)
def test_words_are_cut_as_the_file_says(tmp_path: Path, pre: str, pieces: list[bytes]) -> None:
    """Guards the table of splits: under another's name the digits fall otherwise."""
    assert shown(build(tmp_path, replace(RANKED, pre=pre)), "abc ab 0000") == pieces


@pytest.mark.parametrize("pre", sorted(SPLITS))
def test_every_split_keeps_every_byte(tmp_path: Path, pre: str) -> None:
    """Guards the expressions: one that does not compile, or loses text."""
    text = "It's  9.5 \r\n\t né é…\x00 'LL<x>"
    tokenizer = build(tmp_path, replace(RANKED, pre=pre))
    assert b"".join(shown(tokenizer, text)) == text.encode()


def test_merging_by_score_falls_back_to_bytes(tmp_path: Path) -> None:
    """Guards characters that the vocabulary does not have."""
    tokenizer = build(tmp_path, SCORED)
    assert shown(tokenizer, "ab é") == [b" ab", b" ", b"\xc3", b"\xa9"]


def test_a_space_stands_before_text_only_at_the_start_and_after_special_tokens(
    tmp_path: Path,
) -> None:
    """Guards chats, where nearly every text follows a special token."""
    tokenizer = build(tmp_path, SCORED)
    assert shown(tokenizer, "ab</s>ab", special=True) == [b" ab", b"</s>", b" ab"]
    without = build(tmp_path, replace(SCORED, answers={"add_space_prefix": False}))
    assert shown(without, "ab</s>ab", special=True) == [b"ab", b"</s>", b"ab"]


def test_of_equal_scores_the_leftmost_is_joined(tmp_path: Path) -> None:
    """Guards runs of one character, in which every pair has the same score."""
    tokenizer = build(tmp_path, replace(SCORED, answers={"add_space_prefix": False}))
    assert shown(tokenizer, "   ") == [b"  ", b" "]


def test_a_merge_that_makes_no_token_falls_apart(tmp_path: Path) -> None:
    """Guards files whose merges and tokens do not fit each other."""
    tokens = [token for token in TOKENS if token != "ab"]
    stored = replace(RANKED, tokens=tokens, types=None)
    assert shown(build(tmp_path, stored), "ab abc") == [b"a", b"b", b" ab", b"c"]


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        (replace(RANKED, pre="bloom"), "the pre-tokenizer 'bloom'"),
        (replace(RANKED, model="t5"), "the tokenizer 't5'"),
    ],
)
def test_unknown_kinds_are_refused_with_a_way_out(
    tmp_path: Path, stored: StoredTokens, sentence: str
) -> None:
    """Guards against running a model on tokens that it does not know."""
    with pytest.raises(ModelError) as caught:
        build(tmp_path, stored)
    assert sentence in str(caught.value)
    assert "llamacpp backend can run it." in str(caught.value)


@pytest.mark.parametrize(
    ("stored", "sentence"),
    [
        (replace(RANKED, merges=None), "no merges"),
        (replace(SCORED, tokens=("<unk>", "a"), types=None, scores=None), "byte 0x00"),
        (
            replace(
                SCORED,
                tokens=(*SCORED.tokens, "byte"),
                types=(*(SCORED.types or ()), BYTE),
                scores=None,
            ),
            "marked as a byte",
        ),
        (
            replace(
                RANKED,
                pre="llama-bpe",
                tokens=[each for each in TOKENS if each != "ab"],
                types=None,
            ),
            "merges without a token",
        ),
    ],
)
def test_what_cannot_be_tokenised_is_refused_at_the_start(
    tmp_path: Path, stored: StoredTokens, sentence: str
) -> None:
    """Guards requests: they would fail one by one."""
    with pytest.raises(ModelError, match=sentence):
        build(tmp_path, stored)


def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    """Guards native code against what is no text."""
    with pytest.raises(InvalidRequest, match="surrogate"):
        build(tmp_path, RANKED).encode("a\ud800", special=False)


@pytest.mark.parametrize("stored", [RANKED, SCORED], ids=["ranked", "scored"])
def test_threads_get_the_tokens_of_their_own_text(tmp_path: Path, stored: StoredTokens) -> None:
    """Guards requests that are tokenised at the same time."""
    tokenizer = build(tmp_path, stored)
    texts = [f"ab {number} abc{byte_name('é')}" * 20 for number in range(64)]
    expected = [tokenizer.encode(text, special=True) for text in texts]
    start = threading.Barrier(4)

    def encode_all(_: int) -> list[list[int]]:
        start.wait(timeout=30)
        return [tokenizer.encode(text, special=True) for text in texts]

    with ThreadPoolExecutor(4) as pool:
        for got in pool.map(encode_all, range(4), timeout=60):
            assert got == expected
