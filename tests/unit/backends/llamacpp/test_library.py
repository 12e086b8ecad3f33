"""Which llama.cpp is taken, of those that are there."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from jitney.backends.kinds import kind_of
from jitney.backends.llamacpp import library
from jitney.backends.llamacpp.library import LlamaPackage
from tests.children_for_tests import install

BOTH = ("jitney_llama", "llama_cpp")


def test_the_libraries_alone_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the order: what `make llama` adds is used, whatever else is there."""
    install(monkeypatch)
    assert library.find() == LlamaPackage("jitney_llama", Path("/nowhere/jitney_llama/lib"))
    install(monkeypatch, missing=("llama_cpp",))
    assert library.find() == LlamaPackage("jitney_llama", Path("/nowhere/jitney_llama/lib"))
    install(monkeypatch, missing=("jitney_llama",))
    assert library.find() == LlamaPackage("llama_cpp", Path("/nowhere/llama_cpp/lib"))


def test_where_there_is_none_that_is_an_import_error_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards the sentence: the error has the name by which it is known as a missing library."""
    install(monkeypatch, missing=BOTH)
    assert library.find() is None
    with pytest.raises(ModuleNotFoundError) as caught:
        library.native.__wrapped__()
    assert caught.value.name in kind_of("llamacpp").libraries


def test_a_folder_that_was_left_behind_is_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards an uninstall: Python takes any folder of that name for a module without a file."""
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: ModuleSpec(name, None) if name == "jitney_llama" else None,
    )
    assert library.find() is None


def test_looking_for_it_loads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards `jitney backends`: a package that cannot be imported is found all the same."""
    package = tmp_path / "jitney_llama"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('it was loaded')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(importlib.util.sys.modules, "jitney_llama", raising=False)  # type: ignore[attr-defined]
    assert library.find() == LlamaPackage("jitney_llama", package / "lib")
