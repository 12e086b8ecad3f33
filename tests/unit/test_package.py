"""Tests of the package as an index gets it: the archive of the source, and the wheel built from it.

Both are built once, as `.ci/package` builds them, but without a network.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.requirements import Requirement

import jitney

ROOT = Path(__file__).parents[2]
WAIT_S = 300
NEEDED = ("pyproject.toml", "LICENSE", "NOTICE", "docs/package.md", "src")
"""What the build reads of the repository."""
X86 = {"sys_platform": "linux", "platform_machine": "x86_64", "extra": ""}
ARM = X86 | {"platform_machine": "aarch64"}
"""Machines, as the markers of requirements see them."""


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=WAIT_S, check=False
    )


def built(folder: Path, what: str, target: Path) -> Path:
    """Build it from this folder, which the build may write to."""
    build = (sys.executable, "-m", "build", "--no-isolation", f"--{what}", "--outdir", str(target))
    done = run(*build, cwd=folder)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    assert "Deprecat" not in done.stderr
    [file] = target.glob("jitney-*.tar.gz" if what == "sdist" else "jitney-*.whl")
    return file


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
    # tarfile needs a filter from Python 3.12 on, and does not know it before 3.11.4.
    assert run("tar", "-xzf", str(built(copy, "sdist", folder)), cwd=folder).returncode == 0
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


def test_the_metadata_say_what_it_is_and_where_it_runs(metadata: Metadata) -> None:
    """Guards the search of an index, and its filters: by Python, by system, by types."""
    assert {"llm", "inference", "gguf", "openai"} <= set(metadata.keywords or [])
    classifiers = metadata.classifiers or []
    python = "Programming Language :: Python :: "
    versions = [each.removeprefix(python) for each in classifiers if each.startswith(python)]
    assert str(metadata.requires_python) == f">={versions[0]}"
    said = f"Python {versions[0]} to {versions[-1]} on Linux or macOS"
    assert said in (ROOT / "README.md").read_text(encoding="utf-8")
    assert {
        "Typing :: Typed",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
    } <= {*classifiers}
    # An index refuses a licence that is said twice.
    assert not any(each.startswith("License ::") for each in classifiers)


def test_the_page_on_an_index_needs_nothing_beside_it(metadata: Metadata) -> None:
    """Guards readers there: a picture or a link into the repository would be broken."""
    page = metadata.description or ""
    assert metadata.description_content_type == "text/markdown"
    assert page.startswith("# jitney\n")
    linked = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"", page)
    assert [one or other for one, other in linked if "://" not in (one or other)] == []


@pytest.mark.usefixtures("wheel")
def test_an_index_would_take_both_files(source: Path) -> None:
    """Guards the upload: what twine finds there would be found after the tag."""
    files = [str(file) for file in source.parent.glob("jitney-*") if file.is_file()]
    done = run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=source.parent)
    assert (len(files), done.returncode) == (2, 0), done.stdout + done.stderr


def test_an_upload_needs_the_address_of_the_project(tmp_path: Path) -> None:
    """Guards people on an index, who would find neither the source nor where to report."""
    (tmp_path / ".ci").mkdir()
    script = str(shutil.copy(ROOT / ".ci" / "package", tmp_path / ".ci"))
    (tmp_path / "pyproject.toml").write_text("[project]\n", encoding="utf-8")
    done = run(script, "v0.2.0", cwd=tmp_path)
    assert (done.returncode, "[project.urls]" in done.stdout) == (1, True)
    assert len(done.stdout.splitlines()) == 1


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
    assert extras == old | {"all", "torch"}
    every = {
        Requirement(str(each)).name
        for each in metadata.requires_dist or []
        if each.marker is not None and each.marker.evaluate(X86 | {"extra": "all"})
    }
    assert every >= {"jitney", "matplotlib"}
    assert jitney.__name__ == str(metadata.name)
