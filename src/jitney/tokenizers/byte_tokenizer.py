"""A small tokenizer of bytes and some words: the vocabulary of the fake backend.

Pure functions, any thread. Every text has tokens, and the tokens give the same text again. So tests
and demonstrations need no model file. Words, and characters of several bytes, make tokens that
split text where real tokenizers split it.
"""

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
_PIECES = (
    *(bytes([byte]) for byte in range(256)),
    *(f" {word}".encode() for word in _WORDS),
    *(name.encode() for name in _NAMES),
)
_WORD_TOKENS = {piece: _FIRST_WORD + at for at, piece in enumerate(_PIECES[256:_FIRST_NAME])}
_NAME_TOKENS = {piece: _FIRST_NAME + at for at, piece in enumerate(_PIECES[_FIRST_NAME:])}
_LENGTHS = tuple(sorted({len(piece) for piece in _PIECES[256:]}, reverse=True))

_CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('the roles are system, user and assistant') }}{% endif %}"
    "{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def byte_vocabulary() -> Vocabulary:
    """The 256 bytes, the words with a space before them, and five control tokens."""
    return Vocabulary(
        pieces=_PIECES,
        control=frozenset(_NAME_TOKENS.values()),
        eos_tokens=(_NAME_TOKENS[b"<|end|>"],),
        bos_token=_NAME_TOKENS[b"<|bos|>"],
        chat_template=_CHAT_TEMPLATE,
    )


def encode(text: str, *, special: bool) -> list[int]:
    """The longest word at each place, or a byte. With `special`, also names of control tokens.

    Half of a surrogate pair, which UTF-8 cannot express, becomes a question mark.
    """
    content = text.encode("utf-8", errors="replace")
    tokens: list[int] = []
    at = 0
    while at < len(content):
        token = content[at]
        length = 1
        # Only a space or an angle bracket starts a token of more than one byte.
        if token in b" <":
            for candidate in _LENGTHS:
                piece = content[at : at + candidate]
                found = _WORD_TOKENS.get(piece)
                if found is None and special:
                    found = _NAME_TOKENS.get(piece)
                if found is not None:
                    token, length = found, len(piece)
                    break
        tokens.append(token)
        at += length
    return tokens
