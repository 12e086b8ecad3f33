"""The small vocabulary of the fake backend."""

from jitney.tokenizers.byte_tokenizer import byte_vocabulary, encode

VOCABULARY = byte_vocabulary()


def decoded(tokens: list[int]) -> str:
    return b"".join(VOCABULARY.pieces[token] for token in tokens).decode()


def test_words_are_single_tokens_and_the_longest_wins() -> None:
    """Guards the greedy match: a word token shows that text is not only bytes."""
    tokens = encode(" the bus café the", special=False)
    assert len(tokens) == 4
    assert decoded(tokens) == " the bus café the"


def test_names_become_control_tokens_only_when_special() -> None:
    """Guards the boundary between a caller's text and structure."""
    assert set(encode("<|user|>", special=True)) <= VOCABULARY.control
    assert not set(encode("<|user|> <|end|>", special=False)) & VOCABULARY.control
    assert decoded(encode("x<|user|>", special=False)) == "x<|user|>"


def test_end_and_beginning_are_control_tokens() -> None:
    """Guards the vocabulary's own consistency."""
    assert set(VOCABULARY.eos_tokens) <= VOCABULARY.control
    assert VOCABULARY.bos_token in VOCABULARY.control
    assert len(set(VOCABULARY.pieces)) == len(VOCABULARY.pieces)


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    """Guards texts from JSON, which can hold what UTF-8 cannot."""
    assert decoded(encode("a\ud800b", special=True)) == "a?b"
