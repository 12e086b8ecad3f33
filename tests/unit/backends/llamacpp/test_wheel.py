"""The package of libraries: a wheel that pip takes, with everything where it belongs."""

import base64
import csv
import hashlib
import os
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from jitney.backends.llamacpp.wheel import install_wheel, write_wheel
from jitney.errors import SetupError

VERSION = "0.5.0+prebuilt.3.22.1"
FILES = {"libllama.so": b"\x7fELF" + bytes(range(256)) * 9, "libggml.so": b"", "LICENSE": b"MIT\n"}
WAIT_S = 120


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def test_pip_installs_it(tmp_path: Path) -> None:
    """Guards every rule that a wheel has to keep: pip checks them, and finds the files."""
    wheel = write_wheel(tmp_path, FILES, VERSION)
    target = tmp_path / "target"
    options = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(wheel)],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    package = target / "jitney_llama"
    for name in ("libllama.so", "libggml.so"):
        assert (package / "lib" / name).read_bytes() == FILES[name]
    [installed] = metadata.distributions(path=[str(target)])
    assert (installed.metadata["Name"], installed.version) == ("jitney-llama", VERSION)
    [licence] = [path for path in installed.files or [] if path.name == "LICENSE"]
    assert licence.read_binary() == FILES["LICENSE"]
    assert "dist-info/licenses" in str(licence)


def test_its_record_has_every_file_with_its_digest(tmp_path: Path) -> None:
    """Guards the key of what is remembered: a library that is another one has another record."""
    with zipfile.ZipFile(write_wheel(tmp_path, FILES, VERSION)) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    [record] = [name for name in content if name.endswith("/RECORD")]
    rows = {row[0]: row[1:] for row in csv.reader(content[record].decode().splitlines())}
    assert rows.pop(record) == ["", ""]
    assert rows == {
        name: [f"sha256={digest(each)}", str(len(each))]
        for name, each in content.items()
        if name != record
    }


@pytest.mark.parametrize(
    ("platform", "tag"),
    [
        ("linux-aarch64", "py3-none-linux_aarch64"),
        ("macosx-11.0-arm64", "py3-none-macosx_11_0_arm64"),
    ],
)
def test_its_name_says_for_which_machine_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str, tag: str
) -> None:
    """Guards against libraries of another machine: pip refuses them by the name of the file."""
    monkeypatch.setattr(sysconfig, "get_platform", lambda: platform)
    wheel = write_wheel(tmp_path, FILES, VERSION)
    assert wheel.name == f"jitney_llama-{VERSION}-{tag}.whl"
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith("/WHEEL")]
        assert f"Tag: {tag}\n" in archive.read(name).decode()


def test_the_same_libraries_make_the_same_wheel(tmp_path: Path) -> None:
    """Guards digests of wheels against the time of day."""
    wheels = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        wheels.append(write_wheel(folder, FILES, VERSION).read_bytes())
    assert wheels[0] == wheels[1]


def test_pip_gets_the_file_and_no_index(
    tmp_path: Path, stand_in_python: Callable[[str], None]
) -> None:
    """Guards the environment: what is installed is this file, and no other package with it."""
    stand_in_python(f'printf "%s\\n" "$@" > "{tmp_path}/words"')
    install_wheel(tmp_path / "a.whl")
    words = (tmp_path / "words").read_text().splitlines()
    assert words[-1] == str(tmp_path / "a.whl")
    assert {"pip", "install", "--no-index", "--no-deps", "--force-reinstall"} <= set(words)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo 'WARNING: old pip' >&2; echo 'ERROR: it is managed elsewhere.' >&2; exit 1",
            "pip could not install a.whl (it is managed elsewhere); ",
        ),
        ("exit 2", "pip could not install a.whl (status 2); "),
    ],
)
def test_what_pip_says_is_told(
    tmp_path: Path, stand_in_python: Callable[[str], None], script: str, message: str
) -> None:
    """Guards people whose Python belongs to their system."""
    stand_in_python(script)
    with pytest.raises(SetupError) as caught:
        install_wheel(tmp_path / "a.whl")
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith(".")


def test_a_python_that_cannot_be_run_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a traceback."""
    monkeypatch.setattr("sys.executable", os.fspath(tmp_path / "none"))
    with pytest.raises(SetupError, match=r"pip could not install a.whl .*No such file"):
        install_wheel(tmp_path / "a.whl")
