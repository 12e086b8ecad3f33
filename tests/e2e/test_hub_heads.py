"""What the first bytes of a model on the hub say: a refusal, or what the model needs."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney.backends.machine import free_memory
from jitney.models import hub_head
from jitney.models.hub_head import BYTES_MAX, FIRST_BYTES, PART_BYTES
from jitney.models.hub_reference import CONFIG, TOKENIZER
from tests.backends_for_tests import needs
from tests.e2e.hub_place import Q4, REPOSITORY, SHAPE, Place, place_in
from tests.models_for_tests import write_tiny_gguf

LARGE = 2 * BYTES_MAX
"""More than a head may have, so that a head is looked at first."""
HUGE = 60 * 10**9
"""More than the hub serves in one piece."""
FEW_KB = 64


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


@pytest.fixture
def tiny(place: Place) -> bytes:
    return place.hub.repositories[REPOSITORY][Q4]


def publish(place: Place, name: str, files: dict[str, bytes], size: int = LARGE) -> None:
    """Put a model on the hub, each of whose files of weights is said to have this size."""
    place.hub.repositories[name] = files
    weights = [each for each in files if each.endswith((".gguf", ".safetensors"))]
    place.hub.longer |= dict.fromkeys(weights, size)


def written(folder: Path, *, architecture: str = SHAPE.architecture, parts: int = 0) -> list[bytes]:
    """The files of a tiny model."""
    made = folder / "made"
    made.mkdir()
    write_tiny_gguf(
        made / "m.gguf", shape=replace(SHAPE, architecture=architecture), part_tensors=parts
    )
    return [each.read_bytes() for each in sorted(made.iterdir())]


def in_parts(contents: list[bytes]) -> dict[str, bytes]:
    count = len(contents)
    return {
        f"m-Q8_0-{number:05}-of-{count:05}.gguf": content
        for number, content in enumerate(contents, start=1)
    }


def leave_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kib: int) -> None:
    """Let so much memory be free."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {kib} kB\n", encoding="utf-8")
    monkeypatch.setattr(free_memory, "MEMINFO", meminfo)


def folder_of(config: dict[str, object]) -> dict[str, bytes]:
    """A model as it is published, in two files of weights."""
    return {
        CONFIG: json.dumps(config).encode(),
        TOKENIZER: b"{}",
        "model-00001-of-00002.safetensors": b"one",
        "model-00002-of-00002.safetensors": b"two",
        "model.safetensors.index.json": b"{}",
    }


LLAMA: dict[str, object] = {
    "model_type": "llama",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 4096,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
}


@pytest.mark.parametrize(
    ("architecture", "tokenizer", "reason"),
    [
        ("nonesuch", b"gpt-2", "unknown model architecture: 'nonesuch'"),
        (
            "starcoder2",
            b"gpt-X",
            "error loading model vocabulary: unknown pre-tokenizer type: 'gpt-X'",
        ),
    ],
)
@pytest.mark.parametrize("size", [LARGE, HUGE], ids=["large", "huge"])
def test_a_model_that_nothing_runs_is_refused_before_it_is_fetched(
    place: Place, tmp_path: Path, architecture: str, tokenizer: bytes, reason: str, size: int
) -> None:
    """Guards people from waiting for gigabytes that nothing here can load."""
    needs("llamacpp")
    [content] = written(tmp_path, architecture=architecture)
    files = {"other-Q8_0.gguf": content.replace(b"gpt-2", tokenizer)}
    publish(place, "owner/other", files, size)
    for command in (("pull", "owner/other"), ("run", "--model", "owner/other", "hi")):
        refused = place.refused(*command)
        assert refused.startswith("owner/other was not fetched, because nothing here"), refused
        assert f"llama.cpp: {reason}" in refused, refused
    assert place.hub.sent_bytes <= 2 * FIRST_BYTES
    assert not list(place.cache.glob("head-*")), "heads are removed"


def test_without_the_library_an_unknown_architecture_is_refused_by_name(
    place: Place, tmp_path: Path
) -> None:
    """Guards a machine on which llama.cpp is to be added only when a model needs it."""
    program = (
        "import importlib.util, sys\n"
        "found = importlib.util.find_spec\n"
        "absent = ('jitney_llama', 'llama_cpp')\n"
        "importlib.util.find_spec = lambda name, *rest: (\n"
        "    None if name in absent else found(name, *rest))\n"
        "from jitney.cli.main import main\n"
        "sys.exit(main(['pull', 'owner/other']))"
    )
    [content] = written(tmp_path, architecture="nonesuch")
    publish(place, "owner/other", {"other-Q8_0.gguf": content})
    done = place.python("-c", program)
    assert "'nonesuch' is not among those that llama.cpp 0.5.0 serves" in done.stderr, done.stderr
    assert place.hub.sent_bytes <= FIRST_BYTES


def test_a_model_in_parts_is_refused_by_the_heads_of_its_parts(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the largest models, which come in parts: what counts is the sum of them."""
    needs("llamacpp")
    files = in_parts(written(tmp_path, parts=5))
    publish(place, "owner/large", files, 2**30)
    leave_free(tmp_path, monkeypatch, 2 * 2**20)
    refused = place.refused("serve", "owner/large")
    assert "it has 3.0 GiB of weights and 2.0 GiB of memory is free" in refused
    assert refused.endswith(" `jitney pull owner/large` fetches it all the same.")
    assert place.hub.sent_bytes <= FIRST_BYTES + 2 * PART_BYTES
    assert [each.name for each in place.cache.glob("head-*")] == []
    told = place.jitney("backends", "owner/large").stdout
    assert "; but this machine has no room for the model now: it has 3.0 GiB of weights" in told


def test_parts_of_an_unknown_architecture_are_refused(place: Place, tmp_path: Path) -> None:
    """Guards against a header that the library reads only with all parts beside it."""
    needs("llamacpp")
    publish(place, "owner/other", in_parts(written(tmp_path, architecture="nonesuch", parts=5)))
    refused = place.refused("pull", "owner/other")
    assert "llama.cpp: unknown model architecture: 'nonesuch'" in refused


@pytest.mark.parametrize("in_git", [True, False], ids=["whole", "as a range"])
def test_a_folder_of_an_unknown_architecture_is_refused_by_its_configuration(
    place: Place, *, in_git: bool
) -> None:
    """Guards people who name a model as it was published."""
    files = folder_of({**LLAMA, "model_type": "nonesuch"})
    publish(place, "owner/folder", files)
    if in_git:
        place.hub.in_git.add(CONFIG)
    refused = place.refused("pull", "owner/folder")
    assert refused.startswith("owner/folder was not fetched, because nothing here can run it.")
    assert "PyTorch: its architecture is 'nonesuch', and known are llama" in refused
    assert place.hub.sent_bytes == len(files[CONFIG])


def test_a_folder_that_runs_only_by_name_says_the_name(place: Place) -> None:
    """Guards the way out, and `jitney pull`, which is for another machine too."""
    publish(place, "owner/folder", folder_of(LLAMA))
    refused = place.refused("run", "--model", "owner/folder", "hi")
    assert refused.endswith("It runs with `--backend torch`, where that is installed.")
    found = json.loads(place.jitney("backends", "--json", "owner/folder").stdout)
    torch = next(each for each in found["backends"] if each["name"] == "torch")
    assert torch["refusal"] is None
    assert torch["needs"]["token_bytes"] in (384, 768), "two or four bytes a number"
    sent = place.hub.sent_bytes
    # It goes on to the weights, which this hub does not have.
    assert "was not fetched, because" not in place.refused("pull", "owner/folder")
    assert place.hub.sent_bytes > sent


def test_a_model_that_is_too_large_is_refused_before_it_is_fetched(
    place: Place, tiny: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards people from waiting for more than their memory holds."""
    leave_free(tmp_path, monkeypatch, FEW_KB)
    place.hub.repositories["owner/large"] = {"large-Q8_0.gguf": tiny.ljust(LARGE, b"\0")}
    refused = place.refused("run", "--model", "owner/large", "hi")
    assert "of weights and" in refused
    assert "take a smaller model or a smaller quantisation" in refused
    assert place.hub.sent_bytes <= FIRST_BYTES
    done = place.jitney("pull", "owner/large")
    assert done.returncode == 0, "for another machine, or later"
    assert "owner/large cannot be loaded here now." in done.stderr


def test_what_would_run_is_told_from_the_head(place: Place, tiny: bytes) -> None:
    """Guards the question before a download: yes, how much memory, and how long a context."""
    needs("llamacpp")
    publish(place, "owner/large", {"large-Q8_0.gguf": tiny})
    done = place.jitney("backends", "owner/large", "--backend", "llamacpp")
    assert done.returncode == 0, done.stderr
    assert "owner/large, not fetched yet" in done.stdout
    assert "  runs     this model: 30.5 MiB of weights, 128 bytes for each token" in done.stdout
    assert "room now for a context of 512 tokens" in done.stdout
    known = json.loads(place.jitney("backends", "--json", "owner/large").stdout)
    llamacpp = next(each for each in known["backends"] if each["name"] == "llamacpp")
    assert llamacpp["needs"]["weights_bytes"] == LARGE
    assert llamacpp["needs"]["length"] == 512
    assert llamacpp["refusal"] is llamacpp["no_room"] is None
    assert place.hub.sent_bytes <= 2 * FIRST_BYTES
    assert not place.hub_cache.exists(), "nothing of it is in the cache"


def test_what_would_not_run_is_told_from_the_head(place: Place, tmp_path: Path) -> None:
    """Guards the same question where the answer is no."""
    needs("llamacpp")
    publish(place, "owner/other", in_parts(written(tmp_path, architecture="nonesuch", parts=5)))
    done = place.jitney("backends", "owner/other")
    assert "  refuses  this model: unknown model architecture: 'nonesuch'" in done.stdout
    assert "chosen     none" in done.stdout


def test_a_hub_that_is_down_leaves_the_list(place: Place) -> None:
    """Guards the command without a network: it says what it can."""
    done = place.jitney("backends", REPOSITORY, HF_HUB_OFFLINE="1")
    assert done.returncode == 0
    assert "HF_HUB_OFFLINE forbids access to the hub" in done.stderr
    assert f"{REPOSITORY}, not fetched yet" in done.stdout


def test_a_large_model_that_runs_is_fetched_whole(
    place: Place, tiny: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the check itself: a model that runs passes it, with a head of several requests."""
    monkeypatch.setattr(hub_head, "FIRST_BYTES", 1024)
    place.hub.repositories["owner/large"] = {"large-Q8_0.gguf": tiny.ljust(LARGE, b"\0")}
    assert place.pulled("owner/large").read_bytes() == tiny.ljust(LARGE, b"\0")
    assert [each.range for each in place.hub.contents()[:2]] == ["bytes=0-1023", "bytes=1024-4095"]


def test_a_head_that_breaks_off_is_no_reason_to_refuse(place: Place, tiny: bytes) -> None:
    """Guards people behind a bad connection: the fetch itself goes on where it was."""
    place.hub.repositories["owner/large"] = {"large-Q8_0.gguf": tiny.ljust(LARGE, b"\0")}
    place.hub.cuts["large-Q8_0.gguf"] = [100]
    done = place.jitney("pull", "owner/large")
    assert done.returncode == 0, done.stderr
    assert "is not known before it is fetched: its first bytes did not arrive" in done.stderr


@pytest.mark.parametrize("count", [1, 400], ids=["one file", "parts"])
def test_a_head_has_its_limit(place: Place, tiny: bytes, count: int) -> None:
    """Guards the line of people whom a stranger's file keeps busy: it says why it goes on."""
    # A key that claims more than will be fetched.
    long = tiny.replace(b"tokenizer.chat_template", b"tokenizer.chat_templatX")
    at = long.index(b"tokenizer.chat_templatX") + 23 + 4
    long = long[:at] + (10**9).to_bytes(8, "little") + long[at + 8 :]
    files = in_parts([tiny] * count) if count > 1 else {"large-Q8_0.gguf": long}
    publish(place, "owner/large", files, 2**31)
    done = place.jitney("backends", "owner/large")
    assert done.returncode == 0, done.stderr
    assert "owner/large needs is not known before it is fetched: its headers take more" in (
        done.stderr
    )
    assert place.hub.sent_bytes <= BYTES_MAX


def test_what_is_no_model_is_told(place: Place) -> None:
    """Guards small files, of which everything is fetched to look."""
    place.hub.repositories["owner/none"] = {"none-Q8_0.gguf": b"GGUF and no more", "e.gguf": b""}
    for name in ("owner/none:Q8_0", "owner/none/e.gguf"):
        done = place.jitney("backends", name)
        assert done.returncode == 0, done.stderr
        assert f"{name} needs is not known before it is fetched: " in done.stderr
