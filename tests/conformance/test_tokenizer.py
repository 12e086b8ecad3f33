"""The tokenizer that needs no llama.cpp gives what llama.cpp gives: vocabulary and tokens.

Each kind of tokenizer has a vocabulary made for it, in which any two neighbours can merge, so that
a cut in the wrong place changes the tokens. The embedded model is compared where it is at hand.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("tokenizers", reason="the extra `openvino` is not installed")
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.backends.llamacpp.bindings import Model
from jitney.config import cache_folder, environment
from jitney.models import embedded
from jitney.models.gguf_vocabulary import read_vocabulary
from jitney.tokenizers.byte_pairs import BytePairs
from jitney.tokenizers.splits import SPLITS
from jitney.tokenizers.tokenizer import ModelTokenizer, read_tokenizer
from tests.vocabularies_for_tests import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    StoredTokens,
    pair_merges,
    tokens_of_merges,
    write_tokens,
)

ALPHABET = "aZ9٣ \t\n\r'sl.$é中\u0301\u00a0\u1c89"
"""One or two of each kind of character that some tokenizer treats apart."""
NAMES = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<unk>", "<tool>", "<tool><tool>", "[EMPTY]"),
)
TYPES = (CONTROL, CONTROL, CONTROL, UNKNOWN, USER_DEFINED, USER_DEFINED, UNUSED)

TEXTS = (
    *("", " ", "  ", " " * 37, "\n", "\r", "\r\n\r\n"),
    " \n \n\n  \t\t x",
    "Hello, world!",
    " Hello  world   again    ",
    "trailing space ",
    "\ttab\tseparated\t\tvalues\n",
    "one\rtwo\r\rthree\r\n",
    "def f(x: int) -> str:\n    return f'{x:>10}'\n\n\nclass A:\n\tpass  # done\n",
    "for (int i = 0; i < n; ++i) { a[i] *= 0x7fFF; } // ok\n",
    "I'm you're he's we'd they'll I've 't 'S 'LL 'Re DON'T can'T '\u017f 'K",
    "12345678901234567890 1 22 333 4444 3.14159 1,000,000 ½ ² Ⅷ ٣٤٥ 一二三",
    "emoji 🙂🚌 👩‍👩‍👧‍👦 🏳️‍🌈 🇳🇱 👍🏽 ❤️",
    "combining e\u0301 o\u0308\u0323 Z\u0351\u0343\u0357 a\u0301\u0301\u0301",
    "naïve café Ünïcödé ŁÓDŹ straße ǅ ﬁ",
    "Привет, мир! Ελληνικά עברית العربية ١٢٣ فارسی",
    "ภาษาไทยไม่มีช่องว่าง हिन्दी में लिखा বাংলা தமிழ்",
    "中文没有空格\uff0c标点。日本語のテキスト「カタカナ」ひらがな 한국어 문장입니다.",
    "mixed中文and日本語with한국어and123digits\uff14\uff15\uff16",
    "no\u00a0break\u00a0\u00a0space em\u2003space thin\u2009 ideographic\u3000space nel\u0085x",
    "zero\u200bwidth\u200cnon\u200djoiner\ufeffbom word\u2060joiner soft\u00adhyphen",
    "line\u2028para\u2029vt\x0bff\x0cfs\x1cgs\x1drs\x1eus\x1f",
    "nul\x00inside\x00\x00 bell\x07 del\x7f c1\x80\x9f",
    "private \ue000\uf8ff \U000f0000 \U0010fffd noncharacter \ufffe\uffff \U0001ffff",
    "replacement \ufffd\ufffd Ã© â\u201a¬ \\xff\\xfe",
    *("a" * 5000, "ab" * 2500, "🙂" * 700, "中" * 1500),
    ("word " * 30 + "\n") * 20,
    "=" * 200 + "-" * 77 + "#" * 13 + "!?" * 20,
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "<|endoftext|><|endoftext|> <|im_end|>x<|im_end",
    "<s>[INST] hi [/INST] yes</s><s> </s > <0x0A> <0xFF> <unk> ▁ ▁▁under score_",
    "<tool><tool><tool>x<tool> <tool",
    "<|im_<|im_end|>end|> <unk><unk>",
    "http://example.com/a/b?c=d&e=%20#f user@example.com C:\\path\\file.txt",
    '{"key": ["value", 1.5e-10, null, true], "nested": {"a": "b\\n"}}',
    "$100 €50 £20 ¥1 +1-2*3/4=5^6 ~`|<>@#%&",
)


@dataclass(frozen=True, slots=True)
class Pair:
    """The same file under llama.cpp and without it."""

    model: Model
    tokenizer: ModelTokenizer

    def check(self, text: str) -> None:
        data = text.encode()
        for special in (False, True):
            expected = self.model.encode(data, special=special)
            assert self.tokenizer.encode(text, special=special) == expected, (text, special)


@dataclass(frozen=True, slots=True)
class Windowed:
    """Merging by rank under llama.cpp, and without it in small windows."""

    model: Model
    pairs: BytePairs

    def check(self, text: str) -> None:
        assert self.pairs.encode(text) == self.model.encode(text.encode(), special=False), text


def opened(path: Path) -> Pair:
    return Pair(Model(path, gpu_layers=0, extra_kernels=False), read_tokenizer(path))


def byte_pairs(pre: str | None) -> StoredTokens:
    """A vocabulary merged by rank, with special tokens, and a few things that only damage makes."""
    merges = pair_merges(ALPHABET)
    tokens = tokens_of_merges(merges)
    return StoredTokens(
        tokens=(*NAMES, *tokens),
        types=(*TYPES, *[NORMAL] * len(tokens)),
        pre=pre,
        merges=merges,
        roles={"bos_token_id": 1, "eos_token_id": 2},
        chat_template="{{ messages }}",
    )


def scored() -> StoredTokens:
    """A vocabulary merged by score: some scores are equal, and one part of a token is no token."""
    words = ["▁a", "▁the", "he", "th", "er", "in", "▁in", "▁t", "aa", "aaa", "aaaa", "▁▁", "▁▁▁▁"]
    words += ["▁▁▁", "s>", "</", "qu", "que", "中文", "é", "é中", "ab", "ba", "<s", ".\n", "\n\n"]
    words += [*"▁abcdehinqrstu<>/.", "\t"]
    scores = [-float(at // 2) for at in range(len(words))]
    names = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "<tool>", "▁▁▁▁▁")
    types = (UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, USER_DEFINED, USER_DEFINED)
    return StoredTokens(
        tokens=(*names, *words),
        types=(*types, *[NORMAL] * len(words)),
        scores=(*[0.0] * len(names), *scores),
        model="llama",
        pre=None,
        roles={"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0},
    )


PRES = (
    *("gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe", "dbrx", "gpt-4o", "tekken", "default"),
    None,
)
FILES = {
    **{f"pre-{pre}": byte_pairs(pre) for pre in PRES},
    "scored": scored(),
    "scored-no-prefix": replace(scored(), answers={"add_space_prefix": False}),
    "scored-stripping": replace(
        scored(),
        name="a Phi-3 model",
        tokens=(*scored().tokens, "<|endoftext|>"),
        types=(*(scored().types or ()), CONTROL),
        scores=(*(scored().scores or ()), 0.0),
    ),
    "no-scores": replace(scored(), scores=None, answers={"add_bos_token": False}),
    "no-types": replace(byte_pairs("gpt-2"), types=None, roles={}, chat_template=None),
    "missing": replace(
        byte_pairs("gpt-2"),
        tokens=[each for each in (*NAMES, *tokens_of_merges(pair_merges(ALPHABET)))
                if each not in ("aa", "Ġa", "é", "Z", "Ċ", "ZZ")],
        types=None,
    ),
    "other-names": replace(
        byte_pairs("gpt-2"),
        tokens=("<|return|>", "<|call|>", "<|end|>", "<|channel|>", "<|fim_pad|>", "<reponame>",
                "<|fim_prefix|>", *tokens_of_merges(pair_merges(ALPHABET))),
        roles={"eot_token_id": 20, "eom_token_id": 21, "fim_suf_token_id": 22},
    ),
    "gemma-names": replace(
        byte_pairs("gpt-2"),
        tokens=("<|tool_response>", "</s>", "<turn|>", "<eos>", "<PAD>", "<|file_sep|>", "<EOT>",
                *tokens_of_merges(pair_merges(ALPHABET))),
        roles={"eos_token_id": 4_000_000_000, "fim_pad_token_id": 30},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """All files, so that a text that was drawn is tried with each."""
    folder = tmp_path_factory.mktemp("tokens")
    for name, stored in FILES.items():
        write_tokens(folder / name, stored)
    return {name: opened(folder / name) for name in FILES}


@pytest.fixture(params=FILES)
def pair(request: pytest.FixtureRequest, pairs: dict[str, Pair]) -> Pair:
    """Each file in turn."""
    return pairs[request.param]


def check_each(compared: Mapping[str, Pair | Windowed], text: str) -> None:
    for name, each in compared.items():
        note(name)
        each.check(text)


@pytest.fixture(scope="module")
def real() -> Pair:
    cache = cache_folder(environment())
    if not embedded.is_there(cache):
        pytest.skip("the embedded model has not been fetched")
    return opened(embedded.path_in(cache))


def test_the_vocabulary_is_the_same(pair: Pair) -> None:
    """Guards stops, templates and the bytes of streamed text."""
    assert pair.tokenizer.vocabulary == pair.model.vocabulary()


def test_the_tokens_are_the_same(pair: Pair) -> None:
    """Guards prompts: a model reads other tokens than it learned with worse, and says nothing."""
    for text in TEXTS:
        pair.check(text)


@settings(max_examples=150, deadline=None)
@given(text=st.text(ALPHABET, max_size=40))
def test_any_text_of_the_alphabet_has_the_same_tokens(pairs: dict[str, Pair], text: str) -> None:
    """Guards the places where words are cut: here every cut shows."""
    check_each(pairs, text)


@settings(max_examples=150, deadline=None)
@given(
    text=st.lists(
        st.sampled_from((*NAMES, *"</s><s>", "</s>", "<s>", "▁", "  ", "a", "the", "\n"))
        | st.text(max_size=8),
        max_size=12,
    ).map("".join)
)
def test_any_mix_of_names_has_the_same_tokens(pairs: dict[str, Pair], text: str) -> None:
    """Guards names inside names, names cut short, and what stands between them."""
    check_each(pairs, text)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Windowed]:
    """A file for each way to cut words."""
    folder = tmp_path_factory.mktemp("windowed")
    found = {}
    for pre in PRES:
        path = folder / f"{pre}.gguf"
        write_tokens(path, byte_pairs(pre))
        stored = read_vocabulary(path)
        cut = BytePairs(stored, SPLITS[stored.pre], window=7)
        found[str(pre)] = Windowed(Model(path, gpu_layers=0, extra_kernels=False), cut)
    return found


def test_a_window_may_end_anywhere(windowed: dict[str, Windowed]) -> None:
    """Guards what is cut by what follows: short forms, runs of whitespace, digits in threes."""
    long = " a'll a 9'll Z'll.\n\n  \n  a'll  \n\n  \n\n  \n\n 99999999999 '..\n.\n\na  a"
    for shift in range(7):
        for each in windowed.values():
            each.check("a" * shift + long)


@settings(max_examples=200, deadline=None)
@given(text=st.text(ALPHABET, max_size=60) | st.text("l'9 .\n", max_size=60))
def test_a_long_text_has_the_tokens_of_a_whole_one(
    windowed: dict[str, Windowed], text: str
) -> None:
    """Guards the windows of long texts: with small ones every text is long."""
    check_each(windowed, text)


def test_the_vocabulary_of_the_embedded_model_is_the_same(real: Pair) -> None:
    """Guards the rules on a file that was not made for them."""
    assert real.tokenizer.vocabulary == real.model.vocabulary()


def test_the_tokens_of_the_embedded_model_are_the_same(real: Pair) -> None:
    """Guards prompts with a vocabulary of real merges."""
    for text in TEXTS:
        real.check(text)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_has_the_same_tokens_with_the_embedded_model(real: Pair, text: str) -> None:
    """Guards what nobody thought of."""
    real.check(text)
