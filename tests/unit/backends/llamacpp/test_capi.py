"""llama.cpp's C interface: the real library fits, and one that does not is refused."""

import _ctypes
import ctypes
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: functions and structures of ctypes

import pytest

from jitney.backends.llamacpp import capi, library
from jitney.errors import MissingDependency

KINDS: dict[str, type[ctypes.Structure]] = {
    "llama_model_default_params": capi.ModelParams,
    "llama_context_default_params": capi.ContextParams,
    "llama_model_quantize_default_params": capi.QuantizeParams,
}
CHECKED = [(function, name) for function, each in capi.DEFAULTS.items() for name in each]


@pytest.fixture(scope="module")
def folder() -> Path:
    """The libraries of the package that this file is about."""
    found = library.find()
    if found is None or found.module != "jitney_llama":
        pytest.skip("the package jitney_llama is not installed: `make llama` adds it")
    return found.folder


def params(function: str, **other: object) -> ctypes.Structure:
    """A structure as the library gives it, or with other values."""
    made = KINDS[function]()
    for name, value in {**capi.DEFAULTS[function], **other}.items():
        setattr(made, name, value)
    return made


def native(**functions: Callable[[], Any]) -> SimpleNamespace:
    """A library that fits, but for these functions."""
    fitting = {function: partial(params, function) for function in KINDS}
    return SimpleNamespace(**(fitting | functions))


def refusal_of(function: str, give: Callable[[], Any]) -> str:
    """Why a library is refused whose function gives this."""
    return refusal(lambda: capi.check_layout(native(**{function: give})))


def refusal(action: Callable[[], object]) -> str:
    with pytest.raises(MissingDependency) as caught:
        action()
    text = str(caught.value)
    assert text.endswith("`jitney backends --add llamacpp` installs it again.")
    assert "\n" not in text
    return text


def test_the_real_library_fits(folder: Path) -> None:
    """Guards the declarations against the library that is installed by `make llama`."""
    loaded = capi.load(folder)
    capi.check_layout(loaded)
    assert {*capi.FUNCTIONS, *capi.NAMES, "handle"} == set(vars(loaded))
    for name, (gives, takes) in capi.FUNCTIONS.items():
        if name != "llama_backend_init":
            function = getattr(loaded, name)
            assert (function.restype, tuple(function.argtypes)) == (gives, takes)
    assert loaded.llama_model_default_params().use_extra_bufts


def test_every_default_that_is_checked_is_one_of_the_structure() -> None:
    """Guards the tests below: a library that fits is not refused."""
    capi.check_layout(native())
    assert len(CHECKED) > 20


@pytest.mark.parametrize(("function", "name"), CHECKED)
def test_one_other_default_is_refused_by_name(function: str, name: str) -> None:
    """Guards each field: all that is known of another layout is that values stand elsewhere."""
    usual = capi.DEFAULTS[function][name]
    other = not usual if isinstance(usual, bool) else 77 if usual is None else usual + 3  # type: ignore[operator]
    message = refusal_of(function, partial(params, function, **{name: other}))
    assert f"({function}: {name})" in message
    assert f"another interface than {capi.INTERFACE}" in message


@pytest.mark.parametrize("function", KINDS)
@pytest.mark.parametrize("shift", [4, 8])
def test_a_structure_with_a_field_more_in_front_is_refused(
    folder: Path, function: str, shift: int
) -> None:
    """Guards against another version of the library, by the bytes that it would give."""
    real = bytes(getattr(capi.load(folder), function)())
    kind = KINDS[function]
    moved = (b"\0" * shift + real)[: ctypes.sizeof(kind)]
    assert function in refusal_of(function, lambda: kind.from_buffer_copy(moved))


def test_a_folder_without_libraries_is_a_sentence(tmp_path: Path) -> None:
    """Guards half an install; one that is only named alike is not taken for the library."""
    assert "there is no libllama" in refusal(lambda: capi.load(tmp_path / "none"))
    (tmp_path / "libllama-common.so").touch()
    (tmp_path / "libllama.txt").touch()
    assert "there is no libllama" in refusal(lambda: capi.load(tmp_path))


def test_a_file_that_is_no_library_is_a_sentence(tmp_path: Path) -> None:
    """Guards against a file cut short, and against one for another processor."""
    for name in ("libllama.so", "libggml.so"):
        (tmp_path / name).write_bytes(b"\x7fELF and no more")
    assert str(tmp_path) in refusal(lambda: capi.load(tmp_path))


def test_a_library_without_a_function_is_a_sentence(tmp_path: Path) -> None:
    """Guards against an older or a younger library, before any function of it is called."""
    for name in ("libllama.so", "libggml.so"):
        shutil.copyfile(_ctypes.__file__, tmp_path / name)
    assert "llama_backend_init" in refusal(lambda: capi.load(tmp_path))
