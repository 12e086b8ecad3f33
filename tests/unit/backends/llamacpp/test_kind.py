"""Whether llama.cpp works here: with all kernels, or else without the fastest ones."""

from dataclasses import replace
from pathlib import Path

import pytest

from jitney.backends.kind import Library
from jitney.backends.llamacpp import asked, kernels, kind, library
from jitney.backends.llamacpp.kind import KIND, failure
from jitney.config import Settings
from jitney.config.settings import GPU_LAYERS_ALL
from jitney.errors import ConfigError
from jitney.models import gguf
from jitney.models.tiny import TinyShape, write_tiny_gguf
from tests.backends_for_tests import needs, share_verdicts
from tests.children_for_tests import MODULES, Children, install, refuses, stand_in

ALL = """*'"extra_kernels": true'*"""
SIGILL = "kill -ILL $$"


@pytest.mark.parametrize(
    ("gpus", "child", "layers"),
    [
        ([], "exit 9", 0),
        (["cuda"], None, 0),
        (["cuda"], "kill -SEGV $$", 0),
        (["cuda"], """echo '{"finds_gpu": true}'""", GPU_LAYERS_ALL),
    ],
    ids=["no library for one", "no GPU", "a crash", "a GPU"],
)
def test_as_many_layers_as_can_be_are_none_where_no_gpu_is_found(
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    gpus: list[str],
    child: str | None,
    layers: int,
) -> None:
    """Guards -1 on a processor: memory is laid out as without it, so that texts stay equal, and
    what was measured is remembered as without it. Its driver is not loaded here to find out."""
    if child is None:
        pytest.importorskip("jitney.backends.llamacpp.bindings", reason="needs llama.cpp")
    else:
        stand_in(tmp_path, monkeypatch, llamacpp=child)
    monkeypatch.setattr(library, "gpus", lambda: gpus)
    monkeypatch.setattr(kind, "_finds_gpu", kind._finds_gpu.__wrapped__)
    monkeypatch.setattr(kernels, "are_usable", lambda *given: True)
    plain, wished = (Settings(model=tiny_model, gpu_layers=n) for n in (layers, GPU_LAYERS_ALL))
    assert KIND.speed_facts(tiny_model, wished) == KIND.speed_facts(tiny_model, plain)
    assert KIND.values(wished, tiny_model) == KIND.values(plain, tiny_model)
    assert KIND.values(wished, tiny_model)["gpu_layers"] == layers


def test_numbers_of_8_bits_have_fused_attention(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the start: without it the library makes no memory for them."""
    monkeypatch.setattr(kernels, "are_usable", lambda *given: True)
    for sizes in ({"max_model_len": 256}, {"kv_tokens": 512}):
        settings = Settings(model=tiny_model, kv_cache_dtype="q8_0", **sizes)  # type: ignore[arg-type]
        found = KIND.values(settings, tiny_model)
        assert (found["kv_type"], found["flash_attention"]) == ("q8_0", True)
    with pytest.raises(ConfigError, match=r"flash_attention is off, .* leave one of them out"):
        KIND.check(replace(settings, flash_attention="off"))


def test_heads_that_are_no_whole_blocks_are_refused_by_the_header(tmp_path: Path) -> None:
    """Guards a start that would end with a sentence about room: a block is within one head."""
    path = tmp_path / "odd.gguf"
    write_tiny_gguf(path, shape=TinyShape(width=96, heads=2, heads_kv=2))
    plain = Settings(model=path, cache_dir=tmp_path)
    settings = replace(plain, kv_cache_dtype="q8_0")
    with pytest.raises(ConfigError, match=r"multiple of 32 .* this model have 48; leave it out"):
        KIND.values(settings, path)
    with pytest.raises(ConfigError, match=r"^kv_cache_dtype q8_0 needs heads with a multiple"):
        KIND.needs(path, settings)
    assert KIND.needs(path, plain) is not None


def tried(children: Children) -> list[bool]:
    """Whether each trial was one with all kernels."""
    return [each["numbers"]["extra_kernels"] for each in children.given]


def two(with_all: str, without: str) -> str:
    """A script for the trial with all kernels, and one for the trial without them."""
    return f"""case "$given" in {ALL}) {with_all};; *) {without};; esac"""


def test_an_illegal_instruction_of_the_fastest_kernels_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a library that GCC 12 compiled: it serves, slower, and is asked about once."""
    children = stand_in(tmp_path, monkeypatch, llamacpp=two(SIGILL, "exit 0"))
    assert [failure(Settings(cache_dir=tmp_path / "cache")) for _ in range(3)] == [None] * 3
    assert tried(children) == [True, False]


@pytest.mark.parametrize(
    ("with_all", "without", "message", "trials"),
    [
        ("exit 0", "kill -SEGV $$", None, [True]),
        (SIGILL, SIGILL, "it was compiled for another processor and stops with an", [True, False]),
        (SIGILL, refuses("it is unwell"), "it is unwell", [True, False]),
        ("kill -SEGV $$", "exit 0", "it crashed (SIGSEGV)", [True]),
        (refuses("it is unwell"), "exit 0", "it is unwell", [True]),
    ],
)
def test_only_an_illegal_instruction_asks_for_a_second_trial(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    with_all: str,
    without: str,
    message: str | None,
    trials: list[bool],
) -> None:
    """Guards the meaning of each death: other ones are not about the kernels."""
    children = stand_in(tmp_path, monkeypatch, llamacpp=two(with_all, without))
    found = failure(Settings(cache_dir=tmp_path / "cache"))
    assert found == message if message is None else (found or "").startswith(message)
    assert tried(children) == trials


def test_what_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards `jitney backends` on a bare install, and beside a package without metadata."""
    install(monkeypatch, missing=MODULES["llamacpp"])
    assert KIND.library() is None
    assert KIND.distributions() == ()


@pytest.mark.parametrize(
    ("missing", "name"), [((), "jitney-llama"), (("jitney_llama",), "llama-cpp-python")]
)
def test_the_package_that_brings_it_is_what_a_verdict_holds_for(
    monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...], name: str
) -> None:
    """Guards the key of the memory: the other package holds another library."""
    install(monkeypatch, missing=missing)
    assert isinstance(KIND.library(), Library)
    assert KIND.distributions() == (name,)


def test_a_state_that_only_the_library_knows_takes_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards architectures that are newer than our list of tensors: they are not refused. The
    library is asked once."""
    needs("llamacpp")
    made = pytest.importorskip("tests.hybrids_for_tests", reason="needs the gguf package")
    models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")
    hybrid, plain = tmp_path / "hybrid.gguf", tmp_path / "plain.gguf"
    made.write_hybrid(hybrid, made.HYBRIDS["qwen35"])
    models.write_tiny_gguf(plain)
    monkeypatch.setattr(gguf, "_RECURRENT", ("no tensor",))
    assert gguf.read_header(hybrid).state_bytes == 0
    given = Settings(cache_dir=share_verdicts(tmp_path / "cache"), max_num_seqs=2, threads=1)
    values = KIND.values(given, hybrid)
    assert values["slot_tokens_max"] == 0
    backend = KIND.load(values)
    assert not backend.traits.rewinds
    backend.close()
    assert KIND.values(given, plain)["slot_tokens_max"] != 0
    assert KIND.speed_facts(hybrid, given) is False
    children: list[object] = []
    monkeypatch.setattr(asked, "ask", lambda *sent: children.append(sent))
    assert KIND.values(given, hybrid)["slot_tokens_max"] == 0
    assert children == []
