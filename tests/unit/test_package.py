"""Tests of the package as an index gets it: the archive of the source, and the wheel built from it.

Both are built once, in a process of their own, as `python -m build` does it without a network.
"""

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import jitney

ROOT = Path(__file__).parents[2]
WAIT_S = 300
BUILD = """
import sys
from setuptools import build_meta
print(getattr(build_meta, "build_" + sys.argv[1])(sys.argv[2]))
"""
NEEDED = ("pyproject.toml", "LICENSE", "NOTICE", "docs/package.md", "src")
"""What the build reads of the repository."""
X86 = {"sys_platform": "linux", "platform_machine": "x86_64", "extra": ""}
ARM = X86 | {"platform_machine": "aarch64"}
"""Machines, as the markers of requirements see them."""


def built(folder: Path, what: str, target: Path) -> Path:
    """Build it in this folder, which the build may write to."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, what, str(target)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Deprecat" not in done.stderr
    return target / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked archive of the source, made from a copy of the repository."""
    folder = tmp_path_factory.mktemp("package")
    copy = folder / "copy"
    copy.mkdir()
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *NEEDED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, check=True)
    for name in filter(None, done.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    with tarfile.open(built(copy, "sdist", folder)) as archive:
        archive.extractall(folder, filter="data")
    return next(folder.glob("jitney-*/"))


@pytest.fixture(scope="module")
def wheel(source: Path) -> dict[str, bytes]:
    """The files of the wheel."""
    with zipfile.ZipFile(built(source, "wheel", source.parent)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> Metadata:
    """What the wheel says of itself. An index would refuse what is refused here."""
    [name] = [name for name in wheel if name.endswith(".dist-info/METADATA")]
    return Metadata.from_email(wheel[name], validate=True)


def test_the_wheel_has_every_file_of_the_packages_and_no_other(wheel: dict[str, bytes]) -> None:
    """Guards the page, the types and the licence: a build leaves out in silence what is not named,
    and takes in what lies around."""
    shipped = {
        file.relative_to(ROOT / "src").as_posix()
        for file in (ROOT / "src").rglob("*.*")
        if file.is_file() and "egg-info" not in str(file) and file.suffix != ".pyc"
    }
    about = {name for name in wheel if ".dist-info/" in name}
    assert set(wheel) - about == shipped
    assert {"jitney/py.typed", "jitney/__init__.pyi", "jitney/server/page/index.html"} <= shipped
    kept = {name.rsplit("/", 1)[1]: wheel[name] for name in about if "/licenses/" in name}
    assert kept == {name: (ROOT / name).read_bytes() for name in ("LICENSE", "NOTICE")}


def test_the_source_has_what_its_build_needs(source: Path) -> None:
    """Guards whoever builds from the archive: the wheel of these tests was built from it."""
    for name in ("LICENSE", "NOTICE", "pyproject.toml", "src/jitney/server/page/index.html"):
        assert (source / name).read_bytes() == (ROOT / name).read_bytes()
    assert not (source / "tests").exists()


def test_the_image_copies_what_the_build_needs() -> None:
    """Guards `docker build`, which sees no other file; the wheel of these tests needs these."""
    copied = " ".join(
        line
        for line in (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8").splitlines()
        if line.startswith("COPY ")
    )
    assert [name for name in NEEDED if f" {name} " not in copied] == []


def test_the_metadata_say_who_may_use_it(metadata: Metadata) -> None:
    """Guards people who may use nothing without a licence; and one version in every place."""
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.author == "the jitney authors"
    assert str(metadata.version) in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert b"Apache License" in (ROOT / "LICENSE").read_bytes()[:200]


def test_the_page_on_an_index_needs_nothing_beside_it(metadata: Metadata) -> None:
    """Guards readers there: a picture or a link into the repository would be broken."""
    page = metadata.description or ""
    assert metadata.description_content_type == "text/markdown"
    assert page.startswith("# jitney\n")
    linked = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", page)
    assert [one or other for one, other in linked if "://" not in (one or other)] == []


@pytest.mark.parametrize("machine", [X86, ARM], ids=["x86-64", "ARM"])
def test_what_serves_is_installed_without_an_extra(
    metadata: Metadata, machine: dict[str, str]
) -> None:
    """Guards `pip install jitney`: server and hub are there, and OpenVINO where it surely fits."""
    names = {
        each.name
        for each in metadata.requires_dist or []
        if each.marker is None or each.marker.evaluate(machine)
    }
    assert names >= {"fastapi", "uvicorn", "huggingface_hub", "tokenizers", "llguidance", "gguf"}
    assert ("openvino" in names) == (machine is X86)
    assert not names & {"ray", "matplotlib", "pytest", "llama-cpp-python"}


def test_the_names_of_extras_stay(metadata: Metadata) -> None:
    """Guards commands that people have: pip only warns of an extra that is gone, and goes on."""
    extras = {str(each) for each in metadata.provides_extra or []}
    old = {"openvino", "llama", "hub", "server", "otel", "cluster", "data", "bench", "dev"}
    assert extras == old | {"all"}
    every = {
        Requirement(str(each)).name
        for each in metadata.requires_dist or []
        if each.marker is not None and each.marker.evaluate(X86 | {"extra": "all"})
    }
    assert every >= {"jitney", "matplotlib"}
    assert jitney.__name__ == str(metadata.name)
