"""Backends by name."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields

import pytest

import jitney.backends.llamacpp
from jitney.backends.kind import Kind, Needs
from jitney.backends.kinds import NAMES, all_kinds, kind_of, load, load_process
from jitney.backends.llamacpp import library
from jitney.config import Settings, known_settings
from jitney.errors import ConfigError, MissingDependency


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("lamacpp", {}, "lamacpp"),
        ("fake", {"slot_count": 4}, "slot_count"),
    ],
    ids=["unknown backend", "unknown setting"],
)
@pytest.mark.parametrize("build", [load, load_process])
def test_a_mistake_is_refused_by_name(
    build: Callable[..., object], name: str, settings: dict[str, int], message: str
) -> None:
    """Guards against a traceback, a setting that is taken and ignored, and an error that turns
    into a crash on its way out of the process."""
    with pytest.raises(ConfigError, match=message):
        build(name, settings)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an import error that does not say what to install."""
    # Its modules are loaded anew, and the ones that others hold come back afterwards.
    monkeypatch.setattr(jitney.backends, "llamacpp", jitney.backends.llamacpp)
    for name in [name for name in sys.modules if name.startswith("jitney.backends.llamacpp")]:
        monkeypatch.delitem(sys.modules, name)
    for name in library.PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependency) as caught:
        load("llamacpp", {"model": "any.gguf"})
    message = str(caught.value)
    assert message.startswith("The llamacpp backend needs llama.cpp, which is not installed: ")
    assert kind_of("llamacpp").advice in message
    for way in ("`jitney backends --add llamacpp`", "extra `llama`"):
        assert way in message


@pytest.mark.parametrize("kind", all_kinds(), ids=NAMES)
def test_a_kind_names_what_is_there(kind: Kind) -> None:
    """Guards a new backend: a mistyped name would be found by whoever gives that setting."""
    assert {each.name for each in fields(Settings)} >= set(kind.own_settings)
    assert set(kind.own_settings) >= set(kind.own_values)
    forms = {each.name: each.form for each in known_settings()}
    for name, values in kind.own_values.items():
        assert set(map(forms[name].read, values)) == set(values)
    assert kind.name in NAMES
    # Without an extra there is nothing to install, and else there is advice for who lacks it.
    assert bool(kind.extra) == bool(kind.libraries) == bool(kind.advice)
    if kind.library() is not None:
        assert all(hasattr(kind.module("backend"), name) for name in kind.classes)


@pytest.mark.parametrize("kind", all_kinds(), ids=NAMES)
def test_to_ask_a_kind_loads_nothing_heavy(kind: Kind) -> None:
    """Guards `jitney backends` and machines without the library."""
    program = (
        f"import sys, jitney.backends.{kind.name}.kind as module\n"
        "module.KIND.library()\n"
        f"heavy = ('numpy', 'gguf', *{kind.libraries!r})\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("kv_tokens", "settings", "length"),
    [
        (8192, Settings(), 4096),
        (3000, Settings(), 3000),
        (3000, Settings(max_model_len=2000), 2000),
        (3000, Settings(max_num_seqs=3, max_per_sequence="even"), 1000),
        (2, Settings(max_num_seqs=3, max_per_sequence="even"), 1),
        (None, Settings(), None),
    ],
)
def test_the_longest_context_is_what_all_limits_leave(
    kv_tokens: int | None, settings: Settings, length: int | None
) -> None:
    """Guards what `jitney backends` says of a model: the figure that a server would start with."""
    needs = Needs(weights_bytes=3 * 2**29, token_bytes=384, model_len_max=4096, kv_tokens=kv_tokens)
    assert needs.length(settings) == length
    words = needs.in_words(settings)
    assert words.startswith("1.5 GiB of weights, 384 bytes for each token of context")
    assert (f"a context of {length} tokens" in words) == (length is not None)
