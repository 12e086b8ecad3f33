"""Models by name, through the program as people run it, against a stand-in of the hub."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.models.parts import parts_of
from tests.e2e.hub_stand_in import HubStandIn, standing_in
from tests.models_for_tests import TinyShape, write_tiny_gguf

WAIT_S = 120
REPOSITORY = "owner/tiny-GGUF"
Q4, Q8 = "tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"
SHAPE = TinyShape(layers=1, width=64, heads=2, heads_kv=1, inner=64)


@dataclass(slots=True)
class Place:
    """A machine of its own: its caches, the hub it knows, and its program."""

    folder: Path
    hub: HubStandIn
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def hub_cache(self) -> Path:
        return self.folder / "hf" / "hub"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def jitney(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run the program to its end."""
        return self.python("-m", "jitney", *words, **environ)

    def python(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run Python to its end."""
        mine = ("JITNEY_", "HF_", "HUGGING")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
        given = {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.folder / "hf"),
            "JITNEY_CACHE_DIR": str(self.cache),
        }
        return subprocess.run(
            [sys.executable, *words],
            input="",
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
            cwd=self.folder,
            env=kept | given | self.environ | environ,
        )

    def pulled(self, name: str, **environ: str) -> Path:
        """Fetch a model, which must succeed; where it is."""
        done = self.jitney("pull", name, **environ)
        assert done.returncode == 0, done.stderr
        return Path(done.stdout.partition(" is here: ")[2].rpartition(" (")[0])

    def refused(self, *words: str, **environ: str) -> str:
        """Run what must fail; its last sentence."""
        done = self.jitney(*words, **environ)
        assert done.returncode in (1, 2), done.stderr
        assert "Traceback" not in done.stderr
        last = done.stderr.splitlines()[-1]
        assert last.startswith("jitney: ")
        return last.removeprefix("jitney: ")

    def listed(self) -> list[dict[str, object]]:
        """What `jitney models` knows."""
        done = self.jitney("models", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert isinstance(found, list)
        return found


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_tiny_gguf(path, shape=SHAPE)
    return path.read_bytes()


@pytest.fixture
def place(tmp_path: Path, tiny: bytes) -> Iterator[Place]:
    with standing_in() as hub:
        hub.repositories[REPOSITORY] = {"README.md": b"# Tiny", Q4: tiny, Q8: tiny + b"\0" * 32}
        yield Place(tmp_path, hub)


def test_a_model_is_fetched_by_name_and_then_is_there_without_a_network(
    place: Place, tiny: bytes
) -> None:
    """Guards the whole way: the right file, the library's own layout, and no question twice."""
    path = place.pulled(f"{REPOSITORY}:q8_0")
    assert path.read_bytes() == tiny + b"\0" * 32
    assert path.name == Q8
    assert path.is_relative_to(place.hub_cache / "models--owner--tiny-GGUF" / "snapshots")
    assert path.readlink().name == place.hub.digest(REPOSITORY, Q8)
    assert (place.hub_cache / "models--owner--tiny-GGUF" / "refs" / "main").exists()
    assert not list(place.hub_cache.rglob("*.incomplete"))
    asked = len(place.hub.seen)
    done = place.jitney("backends", "--json", f"{REPOSITORY}:Q8_0")
    assert json.loads(done.stdout)["model"] == f"{REPOSITORY}:Q8_0"
    assert "not fetched" not in done.stdout
    assert len(place.hub.seen) == asked


def test_what_was_fetched_answers(place: Place) -> None:
    """Guards the way from a name to text; which backend runs it does not matter."""
    pytest.importorskip("llama_cpp", reason="the extra `llama` is not installed")
    words = (
        "--backend",
        "llamacpp",
        "--max-tokens",
        "4",
        "--greedy",
        "--raw",
        "--kv-tokens",
        "512",
    )
    first = place.jitney("run", "--model", REPOSITORY, *words, "the")
    assert first.returncode == 0, first.stderr
    again = place.jitney("run", "--model", REPOSITORY, *words, "the", HF_HUB_OFFLINE="1")
    assert again.stdout == first.stdout != ""


def test_python_takes_a_name_too(place: Place) -> None:
    """Guards `LLM("owner/name:quant")`, and the error that it raises."""
    program = "from jitney import LLM\nLLM('owner/none:Q8_0', backend='llamacpp')"
    done = place.python("-c", program)
    assert done.stderr.splitlines()[-1] == (
        "jitney.errors.ModelError: The hub has no model owner/none; check the spelling, or set "
        "HF_TOKEN if it is private."
    )


def test_nothing_is_fetched_to_list_backends(place: Place) -> None:
    """Guards a command that only looks."""
    done = place.jitney("backends", f"{REPOSITORY}:Q8_0")
    assert done.returncode == 0, done.stderr
    assert f"{REPOSITORY}:Q8_0, not fetched yet" in done.stdout
    assert place.hub.seen == []


@pytest.mark.parametrize(
    ("files", "name", "chosen"),
    [
        ((Q4, Q8), REPOSITORY, Q4),
        ((Q8, "tiny-Q2_K.gguf"), REPOSITORY, Q8),
        (("tiny-IQ3_XS.gguf", "mmproj-F16.gguf"), REPOSITORY, "tiny-IQ3_XS.gguf"),
        (("a/UD-Q4_K_XL.gguf", Q4), f"{REPOSITORY}:q4_k_xl", "a/UD-Q4_K_XL.gguf"),
        (("a/x.gguf", "b/x.gguf"), f"{REPOSITORY}/b/x.gguf", "b/x.gguf"),
    ],
    ids=["Q4_K_M first", "then Q8_0", "the only one", "a given quant", "a given file"],
)
def test_the_file_that_is_meant_is_fetched(
    place: Place, tiny: bytes, files: tuple[str, ...], name: str, chosen: str
) -> None:
    """Guards the choice, and that no other file costs a download."""
    place.hub.repositories[REPOSITORY] = dict.fromkeys(files, tiny)
    assert str(place.pulled(name)).endswith(f"/{chosen}")
    assert {each.path.partition("/main/")[2] for each in place.hub.contents()} == {chosen}


@pytest.mark.parametrize(
    ("files", "name", "told"),
    [
        (
            ("m-Q2_K.gguf", "m-Q6_K.gguf"),
            REPOSITORY,
            f"{REPOSITORY} has several models: Q2_K, Q6_K; choose one, such as {REPOSITORY}:Q2_K.",
        ),
        (
            ("m-Q2_K.gguf",),
            f"{REPOSITORY}:Q5_0",
            f"{REPOSITORY} has no Q5_0; it has Q2_K; choose one, such as {REPOSITORY}:Q2_K.",
        ),
        (
            ("a-Q8_0.gguf", "b-Q8_0.gguf"),
            f"{REPOSITORY}:Q8_0",
            f"{REPOSITORY} has several models of Q8_0: a-Q8_0.gguf, b-Q8_0.gguf; name one, such as "
            f"{REPOSITORY}/a-Q8_0.gguf.",
        ),
        (
            ("model.safetensors",),
            REPOSITORY,
            f"{REPOSITORY} has no GGUF file; take a repository that has some, often the same name "
            "with -GGUF.",
        ),
        (
            (Q4,),
            f"{REPOSITORY}/other.gguf",
            f"{REPOSITORY} has no file other.gguf; it has {Q4}.",
        ),
    ],
    ids=["several", "no such quant", "twice", "no GGUF", "no such file"],
)
def test_what_is_not_clear_is_a_list_to_choose_from(
    place: Place, tiny: bytes, files: tuple[str, ...], name: str, told: str
) -> None:
    """Guards against a guess that costs gigabytes."""
    place.hub.repositories[REPOSITORY] = dict.fromkeys(files, tiny)
    assert place.refused("pull", name) == told
    assert place.hub.contents() == []


def test_all_parts_are_fetched_and_count(place: Place, tmp_path: Path) -> None:
    """Guards models in parts: one that lacks a part does not load, and sizes are those of all."""
    write_tiny_gguf(tmp_path / "parts-F32.gguf", shape=SHAPE, part_tensors=5)
    written = sorted(tmp_path.glob("parts-F32-*.gguf"))
    assert len(written) == 3
    place.hub.repositories[REPOSITORY] = {each.name: each.read_bytes() for each in written}
    path = place.pulled(f"{REPOSITORY}:F32")
    assert path.name == "parts-F32-00001-of-00003.gguf"
    assert [each.read_bytes() for each in parts_of(path)] == [each.read_bytes() for each in written]
    [model] = place.listed()
    assert model["bytes"] == sum(each.stat().st_size for each in written)
    overview = json.loads(place.jitney("backends", "--json", f"{REPOSITORY}:F32").stdout)
    openvino = next(each for each in overview["backends"] if each["name"] == "openvino")
    assert openvino["refusal"] == "it comes in 3 parts, and the converter reads single files"


def test_a_file_that_git_itself_holds_is_fetched_by_the_library(place: Place, tiny: bytes) -> None:
    """Guards small files, which have no digest that could be checked."""
    place.hub.in_git.add(Q4)
    assert place.pulled(REPOSITORY).read_bytes() == tiny


def test_not_found(place: Place) -> None:
    """Guards a typing mistake: it may have been a path or a name."""
    assert place.refused("run", "--model", "models/foo", "hi") == (
        "There is no file models/foo here, and the hub has no model models/foo; check the "
        "spelling, or set HF_TOKEN if it is private."
    )
    assert place.refused("pull", "owner/none:Q8_0") == (
        "The hub has no model owner/none; check the spelling, or set HF_TOKEN if it is private."
    )


def test_what_can_only_be_a_path_is_not_asked_for(place: Place) -> None:
    """Guards the hub against questions about somebody's files."""
    for name in ("models/foo.gguf", "./models/foo", "foo"):
        assert "does not exist" in place.refused("run", "--model", name, "hi")
    assert place.refused("pull", "foo.gguf") == (
        "foo.gguf is no name of a model on the hub; such a name is owner/name, owner/name:quant "
        "or owner/name/file.gguf."
    )
    assert place.hub.seen == []


def test_a_gated_model_says_how_to_get_in_and_a_token_opens_it(place: Place) -> None:
    """Guards the commonest refusal of the hub, before and with a token of the wrong account."""
    place.hub.gated.add(REPOSITORY)
    place.hub.token = "hf_right"
    told = (
        f"{REPOSITORY} is gated or private: accept its licence on {place.hub.url}/{REPOSITORY}, "
        "and set HF_TOKEN to a token of the account that did."
    )
    assert place.refused("pull", REPOSITORY) == told
    assert place.refused("pull", REPOSITORY, HF_TOKEN="hf_wrong") == told
    assert place.pulled(REPOSITORY, HF_TOKEN="hf_right").name == Q4


def test_offline_takes_what_is_cached_and_says_when_nothing_is(place: Place) -> None:
    """Guards machines without a network, by wish and by fate."""
    name = f"{REPOSITORY}:Q8_0"
    lacking = f"{name} is not in the hub's cache ({place.hub_cache})"
    assert place.refused("pull", name, HF_HUB_OFFLINE="1") == (
        f"{lacking}, and HF_HUB_OFFLINE forbids to fetch it; unset it, or fetch the model where "
        "there is a network."
    )
    nobody = "http://127.0.0.1:9"
    told = place.refused("pull", name, HF_ENDPOINT=nobody)
    assert told.startswith(f"{lacking}, and the hub at {nobody} cannot be reached (")
    assert told.endswith("); check the network, or HF_ENDPOINT.")
    path = place.pulled(name)
    assert place.pulled(name, HF_HUB_OFFLINE="1") == path
    assert place.pulled(name, HF_ENDPOINT=nobody) == path


def break_later(hub: HubStandIn) -> None:
    """Cut the first answer off, and refuse every later one."""
    hub.cuts[Q4] = [20_000]

    def broken() -> None:
        if any(each.range for each in hub.contents()):
            hub.broken.add(Q4)

    hub.at_content = broken


def test_a_connection_that_breaks_is_made_anew_where_it_broke(place: Place, tiny: bytes) -> None:
    """Guards long downloads: nothing is fetched twice."""
    place.hub.cuts[Q4] = [1000, 5000]
    assert place.pulled(REPOSITORY).read_bytes() == tiny
    assert [each.range for each in place.hub.contents()] == [None, "bytes=1000-", "bytes=6000-"]


def test_what_was_interrupted_goes_on_in_the_next_process(place: Place, tiny: bytes) -> None:
    """Guards Ctrl-C and power cuts: the beginning is kept, and only the rest is asked for."""
    break_later(place.hub)
    assert place.refused("pull", REPOSITORY) == (
        f"{Q4} of {REPOSITORY} broke off after 0.0 of {len(tiny) / 2**20:.1f} MiB (the hub refused "
        "to go on); run it again, and it goes on from there."
    )
    [kept] = place.hub_cache.rglob("*.incomplete")
    assert kept.read_bytes() == tiny[:20_000]
    place.hub.at_content = lambda: None
    place.hub.broken.clear()
    place.hub.seen.clear()
    assert place.pulled(REPOSITORY).read_bytes() == tiny
    assert [each.range for each in place.hub.contents()] == ["bytes=20000-"]


def test_wrong_bytes_do_not_get_into_the_cache(place: Place) -> None:
    """Guards every tool that shares the cache: what is in it is what the hub describes."""
    place.hub.damaged.add(Q4)
    digest = place.hub.digest(REPOSITORY, Q4)
    assert place.refused("pull", REPOSITORY) == (
        f"{Q4} of {REPOSITORY} did not arrive as the hub describes it (sha256 {digest[:12]}...), "
        "and was removed; fetch it again, or check what stands between this machine and the hub."
    )
    assert not [path for path in place.hub_cache.rglob("*") if path.is_file()]
    place.hub.damaged.clear()
    assert place.pulled(REPOSITORY).name == Q4


def test_damage_on_the_disk_is_found_before_the_model_is_loaded(place: Place, tiny: bytes) -> None:
    """Guards against answers of a damaged model; it is looked at again only when it changed."""
    path = place.pulled(REPOSITORY)
    path.resolve().write_bytes(tiny[:-1] + bytes([tiny[-1] ^ 1]))
    assert place.refused("run", "--model", REPOSITORY, "hi") == (
        f"{path} was damaged: its digest is not the one it was fetched under; it was removed, so "
        "run it again to fetch it anew."
    )
    assert place.pulled(REPOSITORY).read_bytes() == tiny


@pytest.fixture
def small_disk(place: Place, tiny: bytes) -> Iterator[Path]:
    """A disk with room for one and a half of the files, where the hub's cache is."""
    folder = place.folder / "hf"
    folder.mkdir()
    size = len(tiny) * 3 // 2
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("disks cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_too_little_room_is_told_before_anything_is_fetched(
    place: Place, tiny: bytes, small_disk: Path
) -> None:
    """Guards minutes of fetching that cannot end well."""
    (small_disk / "other").write_bytes(b"\0" * len(tiny))
    told = place.refused("pull", REPOSITORY)
    blob = place.hub_cache / "models--owner--tiny-GGUF" / "blobs"
    assert told.startswith(f"{blob}/")
    assert " needs about " in told
    assert told.endswith(" MiB are free; make room, or set HF_HOME to another folder.")
    assert place.hub.contents() == []


def test_a_disk_that_fills_up_meanwhile_is_a_sentence(
    place: Place, tiny: bytes, small_disk: Path
) -> None:
    """Guards against a traceback and a model cut short; with room it goes on."""
    filler = small_disk / "other"

    def fill() -> None:
        filler.write_bytes(b"\0" * (len(tiny) // 4 * 3))

    place.hub.at_content = fill
    assert place.refused("pull", REPOSITORY) == (
        f"{REPOSITORY} could not be fetched: the disk is full; make room, or set HF_HOME to "
        "another folder."
    )
    place.hub.at_content = lambda: None
    filler.unlink()
    assert place.pulled(REPOSITORY).read_bytes() == tiny


def test_models_are_listed_and_removed_by_name(place: Place, tiny: bytes) -> None:
    """Guards the shared cache: only the files of that model go, and only when someone agreed."""
    q4, q8 = place.pulled(f"{REPOSITORY}:Q4_K_M"), place.pulled(f"{REPOSITORY}:Q8_0")
    found = {each["name"]: each for each in place.listed()}
    assert set(found) == {f"{REPOSITORY}:Q4_K_M", f"{REPOSITORY}:Q8_0"}
    assert found[f"{REPOSITORY}:Q4_K_M"]["bytes"] == len(tiny)
    assert found[f"{REPOSITORY}:Q4_K_M"]["kind"] == "hub"
    assert f"{REPOSITORY}:Q8_0\thub\t" in place.jitney("models").stdout
    assert place.refused("models", "rm", f"{REPOSITORY}:Q4_K_M") == (
        f"{REPOSITORY}:Q4_K_M would be taken out of the hub's cache, which other tools share, and "
        "there is no terminal to ask on; give --yes."
    )
    assert "There is no model owner/none here" in place.refused("models", "rm", "owner/none", "-y")
    done = place.jitney("models", "rm", f"{REPOSITORY}:Q4_K_M", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"removed {REPOSITORY}:Q4_K_M (")
    assert not q4.exists()
    assert q8.exists()
    assert [each["name"] for each in place.listed()] == [f"{REPOSITORY}:Q8_0"]


def test_a_conversion_outlives_its_source_until_it_is_pruned(place: Place) -> None:
    """Guards the way from a name to a conversion, its name for people, and what becomes of it."""
    pytest.importorskip("openvino_genai", reason="the extra `openvino` is not installed")
    words = ("--backend", "openvino", "--threads", "1", "--dtype", "float32", "--max-tokens", "1")
    # Whether it can run here does not matter: it is converted before.
    place.jitney("run", "--model", REPOSITORY, *words, "--raw", "the")
    source, conversion = place.listed()
    assert source["name"] == f"{REPOSITORY}:Q4_K_M"
    assert conversion["kind"] == "converted"
    assert str(conversion["name"]).startswith("tiny-Q4_K_M-")
    assert conversion["state"] == "ready"
    assert place.jitney("models", "rm", REPOSITORY, "-y").returncode == 0
    [conversion] = place.listed()
    assert conversion["state"] == "its source is gone"
    assert " freed (" in place.jitney("models", "prune").stdout
    assert place.listed() == []


def test_prune_takes_what_interrupted_fetches_left_and_no_model(place: Place) -> None:
    """Guards room on the disk, and models against the one who makes it."""
    path = place.pulled(f"{REPOSITORY}:Q8_0")
    break_later(place.hub)
    place.refused("pull", f"{REPOSITORY}:Q4_K_M")
    done = place.jitney("models", "prune")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "19.5 KiB freed (20000 bytes)\n"
    assert not list(place.hub_cache.rglob("*.incomplete"))
    assert path.exists()
    assert place.jitney("models", "prune").stdout == "0 bytes freed\n"
