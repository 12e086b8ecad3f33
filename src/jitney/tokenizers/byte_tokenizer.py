"""A small tokenizer of bytes and some words: the vocabulary of the fake backend.

Pure functions, any thread. Every text has tokens, and the tokens give the same text again. So tests
and demonstrations need no model file. Words, and characters of several bytes, make tokens that
split text where real tokenizers split it.
"""

from collections.abc import Sequence

from jitney.core.backend import Vocabulary

_WORDS = (
    *("the", "of", "and", "to", "in", "is", "that", "it", "for", "was", "on", "are", "as", "with"),
    *("his", "they", "at", "be", "this", "have", "from", "or", "one", "had", "by", "word", "but"),
    *("not", "what", "all", "were", "we", "when", "your", "can", "said", "there", "use", "an"),
    *("bus", "road", "stop", "seat", "rain", "night", "light", "river", "morning", "always"),
    *("café", "über", "naïve", "señor", "été", "日本", "привет", "🙂", "🚌", "…"),
)
_NAMES = ("<|end|>", "<|bos|>", "<|system|>", "<|user|>", "<|assistant|>")

_FIRST_WORD = 256
_FIRST_NAME = _FIRST_WORD + len(_WORDS)
_PLAIN_PIECES = (
    *(bytes([byte]) for byte in range(256)),
    *(f" {word}".encode() for word in _WORDS),
)
_WORD_TOKENS = {piece: _FIRST_WORD + at for at, piece in enumerate(_PLAIN_PIECES[_FIRST_WORD:])}

_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('the roles are system, user and assistant') }}{% endif %}"
    "{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


class ByteTokenizer:
    """The 256 bytes, the words with a space before them, and control tokens with these names."""

    def __init__(self, names: Sequence[str]) -> None:
        pieces = [name.encode() for name in names]
        self.pieces = (*_PLAIN_PIECES, *pieces)
        self.names = {piece: _FIRST_NAME + at for at, piece in enumerate(pieces)}
        long = sorted({len(piece) for piece in self.pieces[_FIRST_WORD:]}, reverse=True)
        self._lengths = tuple(long)
        # Only a space or the first byte of a name starts a token of more than one byte.
        self._starts = bytes({ord(" "), *(piece[0] for piece in pieces)})

    def token_of(self, name: str) -> int:
        """The control token of this name, which it has."""
        return self.names[name.encode()]

    def encode(self, text: str, *, special: bool) -> list[int]:
        """The longest word at each place, or a byte. With `special`, also control tokens by name.

        Half of a surrogate pair, which UTF-8 cannot express, becomes a question mark.
        """
        content = text.encode("utf-8", errors="replace")
        names = self.names if special else {}
        starts, lengths = self._starts, self._lengths
        tokens: list[int] = []
        at = 0
        while at < len(content):
            token = content[at]
            length = 1
            if token in starts:
                for candidate in lengths:
                    piece = content[at : at + candidate]
                    found = _WORD_TOKENS.get(piece)
                    if found is None:
                        found = names.get(piece)
                    if found is not None:
                        token, length = found, len(piece)
                        break
            tokens.append(token)
            at += length
        return tokens


TOKENIZER = ByteTokenizer(_NAMES)
"""The one of the fake backend without a script."""


def byte_vocabulary() -> Vocabulary:
    """Its tokens: the bytes, the words, and five control tokens."""
    return Vocabulary(
        pieces=TOKENIZER.pieces,
        control=frozenset(TOKENIZER.names.values()),
        eos_tokens=(TOKENIZER.token_of("<|end|>"),),
        bos_token=TOKENIZER.token_of("<|bos|>"),
        chat_template=_CHAT_TEMPLATE,
    )


def encode(text: str, *, special: bool) -> list[int]:
    """The tokens of a text, as `ByteTokenizer.encode` finds them."""
    return TOKENIZER.encode(text, special=special)
