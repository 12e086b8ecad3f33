"""How text is split into words before merging, for each value of `tokenizer.ggml.pre` in a GGUF.

Values only. The expressions do what llama.cpp does, in Oniguruma's syntax. Repeats are possessive
where backtracking cannot help: then a run of ten million spaces takes no stack.

Tests: tests/unit/tokenizers/test_tokenizer.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Expressions that apply in order, each to the pieces from the one before."""

    expressions: tuple[str, ...]
    ignores_merges: bool = False
    """Whether a word that is a token stays whole, without merging."""
    adds_bos: bool = False
    """Whether prompts begin with the beginning-of-text token if the file does not say."""


# llama.cpp knows the characters of Unicode 15.1. These are new in 16.0, and have no class there.
_LATER = (
    r"\u0897\u1B4E\u1B4F\u1B7F\u1C89\u1C8A\uA7CB-\uA7CD\uA7DA-\uA7DC\x{105C0}-\x{105F3}"
    r"\x{10D40}-\x{10D85}\x{10EC2}-\x{10EFC}\x{11380}-\x{113E2}\x{116D0}-\x{116E3}"
    r"\x{11BC0}-\x{11BF9}\x{11F5A}\x{13460}-\x{143FA}\x{16100}-\x{16139}\x{16D40}-\x{16D79}"
    r"\x{18CFF}\x{1CCF0}-\x{1CCF9}\x{1E5D0}-\x{1E5FF}"
)
_L, _N, _M, _P = (rf"[\p{{{kind}}}&&[^{_LATER}]]" for kind in "LNMP")

# In a run of whitespace before a word, the last character belongs to the word or stands alone.
_SPACES = r"(?:\s(?!\S))++|\s"
_LINES = r"(?:[^\S\r\n]*+[\r\n]++)++"
_SHORT_FORMS = r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"


def _modern(*, letters: str, digits: str) -> str:
    """The expression of Llama 3 and Qwen, which differ in their letters and digits."""
    return "|".join(
        (
            _SHORT_FORMS,
            rf"[^\r\n{_L}{_N}]?[{letters}]++",
            digits,
            rf" ?[^\s{letters}{_N}]++[\r\n]*+",
            _LINES,
            _SPACES,
        )
    )


def _cased(*, ending: str, digits: str) -> str:
    """The expression of GPT-4o and Tekken: a word begins where ASCII goes from small to capital.

    Other letters count as both, so they continue any word. If only capital letters follow the last
    such letter, that letter ends the word.
    """
    other = rf"[{_L}&&[^a-zA-Z]]"
    letters = rf"[A-Z{other}]*+[a-z][a-z{other}]*+|(?:[A-Z]*+{other}++)++|[A-Z]++"
    return "|".join(
        (
            rf"[^\r\n{_L}{_N}]?+(?:{letters}){ending}",
            digits,
            rf" ?[^\s{_L}{_N}]++[\r\n/]*+",
            _LINES,
            _SPACES,
        )
    )


_DIGIT = f"[{_N}]"
_GPT2 = rf"'(?:s|t|re|ve|m|ll|d)| ?[{_L}]++| ?[{_N}]++| ?[^\s{_L}{_N}]++|{_SPACES}"
_LLAMA3 = _modern(letters=_L, digits=f"[{_N}]{{1,3}}")
_QWEN2 = _modern(letters=_L, digits=_DIGIT)
_GPT4O = _cased(ending=f"(?:{_SHORT_FORMS})?+", digits=f"[{_N}]{{1,3}}")
_TEKKEN = _cased(ending="", digits=_DIGIT)
_QWEN35 = _modern(letters=_L + _M, digits=_DIGIT)

_PLAIN = Split(expressions=(_GPT2,))
_DIGITS_APART = Split(expressions=(_DIGIT, _GPT2))
_FALLBACK = Split(expressions=(rf"[{_P}$+<=>^~|]++", _GPT2, f"[{_N}]++", "[0-9][0-9][0-9]"))
_LLAMA = Split(expressions=(_LLAMA3,), ignores_merges=True, adds_bos=True)
_LLAMA_MERGED = Split(expressions=(_LLAMA3,))
_QWEN = Split(expressions=(_QWEN2,))

SPLITS: Mapping[str, Split] = {
    **dict.fromkeys(("", "default"), _FALLBACK),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4"), _PLAIN),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _DIGITS_APART),
    **dict.fromkeys(("exaone", "minerva-7b"), _DIGITS_APART),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "lfm2"), _LLAMA),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _LLAMA_MERGED),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan"), _QWEN),
    **dict.fromkeys(("gpt-4o", "llama4"), Split(expressions=(_GPT4O,))),
    "tekken": Split(expressions=(_TEKKEN,), ignores_merges=True, adds_bos=True),
    "qwen35": Split(expressions=(_QWEN35,)),
}
