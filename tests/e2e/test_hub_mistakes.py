"""Names, networks and disks that fail, against a stand-in of the hub: one sentence each time."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
pytest.importorskip("gguf", reason="needs the gguf package")

from tests.e2e import program
from tests.e2e.hub_place import Q4, REPOSITORY, WAIT_S, Place, break_later, place_in


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with place_in(tmp_path) as made:
        yield made


@pytest.fixture
def tiny(place: Place) -> bytes:
    return place.hub.repositories[REPOSITORY][Q4]


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
        "foo.gguf is not the name of a model on the hub; such a name is owner/name, "
        "owner/name:quant or owner/name/file.gguf."
    )
    assert place.hub.seen == []


def test_a_gated_model_says_how_to_get_in_and_a_token_opens_it(place: Place) -> None:
    """Guards the commonest refusal of the hub, before and with a token of the wrong account."""
    place.hub.gated.add(REPOSITORY)
    place.hub.token = "hf_right"
    message = (
        f"{REPOSITORY} is gated or private: accept its licence on {place.hub.url}/{REPOSITORY}, "
        "and set HF_TOKEN to a token of the account that did."
    )
    assert place.refused("pull", REPOSITORY) == message
    assert place.refused("pull", REPOSITORY, HF_TOKEN="hf_wrong") == message
    assert place.pulled(REPOSITORY, HF_TOKEN="hf_right").name == Q4


def test_a_token_that_the_hub_does_not_know(place: Place) -> None:
    """Guards a token that has run out: it is refused even where none is needed."""
    place.hub.knows_tokens = False
    assert place.refused("pull", REPOSITORY, HF_TOKEN="hf_old") == (
        "The hub does not know the token that it got; make a new one and set HF_TOKEN to it, "
        "or unset HF_TOKEN."
    )


def test_a_hub_that_is_down(place: Place) -> None:
    """Guards the days when the hub answers, and not with what was asked for."""
    place.hub.status = 503
    assert place.refused("pull", REPOSITORY) == (
        f"{REPOSITORY} is neither a file here nor in the hub's cache ({place.hub_cache}), and the "
        f"hub at {place.hub.url} answers with status 503; try again later."
    )
    place.hub.status = None
    path = place.pulled(REPOSITORY)
    place.hub.status = 503
    assert place.pulled(REPOSITORY) == path


def test_offline_takes_what_is_cached_and_says_when_nothing_is(place: Place) -> None:
    """Guards machines without a network, by wish and by fate."""
    name = f"{REPOSITORY}:Q8_0"
    lacking = f"{name} is not in the hub's cache ({place.hub_cache})"
    assert place.refused("pull", name, HF_HUB_OFFLINE="1") == (
        f"{lacking}, and HF_HUB_OFFLINE forbids access to the hub; unset it, or fetch the model "
        "where there is a network."
    )
    nobody = "http://127.0.0.1:9"
    message = place.refused("pull", name, HF_ENDPOINT=nobody)
    assert message.startswith(f"{lacking}, and the hub at {nobody} cannot be reached (")
    assert message.endswith("); check the network, or HF_ENDPOINT.")
    path = place.pulled(name)
    done = place.jitney("pull", name, HF_HUB_OFFLINE="1")
    assert str(path) in done.stdout
    assert done.stderr == (
        f"jitney: The cached version of {name} is used, because HF_HUB_OFFLINE forbids access to "
        "the hub\n"
    )
    assert place.pulled(name, HF_ENDPOINT=nobody) == path


def test_a_connection_that_breaks_is_made_anew_where_it_broke(place: Place, tiny: bytes) -> None:
    """Guards long downloads: nothing is fetched twice."""
    place.hub.cuts[Q4] = [1000, 5000]
    assert place.pulled(REPOSITORY).read_bytes() == tiny
    assert [each.range for each in place.hub.contents()] == [None, "bytes=1000-", "bytes=6000-"]


def test_what_was_interrupted_goes_on_in_the_next_process(place: Place, tiny: bytes) -> None:
    """Guards Ctrl-C and power cuts: the beginning is kept, and only the rest is asked for."""
    break_later(place.hub)
    assert place.refused("pull", REPOSITORY) == (
        f"{Q4} of {REPOSITORY} stopped after 0.0 of {len(tiny) / 2**20:.1f} MiB (the hub refused "
        "to go on); run it again, and it continues from there."
    )
    [kept] = place.hub_cache.rglob("*.incomplete")
    assert kept.read_bytes() == tiny[:20_000]
    place.hub.at_content = lambda: None
    place.hub.broken.clear()
    place.hub.seen.clear()
    assert place.pulled(REPOSITORY).read_bytes() == tiny
    assert [each.range for each in place.hub.contents()] == ["bytes=20000-"]


def test_ctrl_c_keeps_what_has_come(place: Place, tiny: bytes) -> None:
    """Guards an impatient person: the next call goes on, wherever the first one was."""
    reached, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        goes_on.wait(WAIT_S)

    place.hub.cuts[Q4] = [20_000]
    place.hub.at_cut = hold
    process = place.started("-m", "jitney", "pull", REPOSITORY)
    assert reached.wait(WAIT_S)
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=WAIT_S)
    goes_on.set()
    assert process.returncode == 130
    assert "Traceback" not in message
    [kept] = place.hub_cache.rglob("*.incomplete")
    had = kept.stat().st_size
    place.hub.seen.clear()
    assert place.pulled(REPOSITORY).read_bytes() == tiny
    assert [each.range for each in place.hub.contents()] == [f"bytes={had}-" if had else None]


def test_two_processes_at_once_fetch_once(place: Place) -> None:
    """Guards the network, and the file against two writers."""
    processes = [place.started("-m", "jitney", "pull", REPOSITORY) for _ in range(2)]
    message = [process.communicate(timeout=WAIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], message
    assert len(place.hub.contents()) == 1


def test_without_the_library_the_extra_is_named(place: Place) -> None:
    """Guards a bare installation: models by name cannot work, and everything else does."""
    program = (
        "import sys\n"
        "sys.modules['huggingface_hub'] = None\n"
        "from jitney.cli.main import main\n"
        "assert main(['models']) == 0\n"
        "sys.exit(main(['pull', 'owner/name']))"
    )
    done = place.python("-c", program)
    assert done.returncode == 1
    assert done.stderr == (
        "jitney: Models by name need huggingface_hub 2.4 or newer, which is not installed: install "
        "jitney with the extra `hub`, or name a GGUF file.\n"
    )


def test_wrong_bytes_do_not_get_into_the_cache(place: Place) -> None:
    """Guards every tool that shares the cache: what is in it is what the hub describes."""
    place.hub.damaged.add(Q4)
    digest = place.hub.digest(REPOSITORY, Q4)
    assert place.refused("pull", REPOSITORY) == (
        f"{Q4} of {REPOSITORY} did not arrive as the hub describes it (sha256 {digest[:12]}...), "
        "and was removed; fetch it again, or check the proxies between this machine and the hub."
    )
    assert not [path for path in place.hub_cache.rglob("*") if path.is_file()]
    place.hub.damaged.clear()
    assert place.pulled(REPOSITORY).name == Q4


def test_damage_on_the_disk_is_found_before_the_model_is_loaded(place: Place, tiny: bytes) -> None:
    """Guards against answers of a damaged model; it is looked at again only when it changed."""
    path = place.pulled(REPOSITORY)
    path.resolve().write_bytes(tiny[:-1] + bytes([tiny[-1] ^ 1]))
    assert place.refused("run", "--model", REPOSITORY, "hi") == (
        f"{path} was damaged: its digest is not the one it was fetched under. It was removed; "
        "run it again to fetch it again."
    )
    assert place.pulled(REPOSITORY).read_bytes() == tiny


@pytest.fixture
def small_disk(place: Place, tiny: bytes) -> Iterator[Path]:
    """A disk with room for one and a half of the files, where the hub's cache is."""
    with program.small_disk(place.folder / "hf", len(tiny) * 3 // 2) as folder:
        yield folder


def test_too_little_room_is_told_before_anything_is_fetched(
    place: Place, tiny: bytes, small_disk: Path
) -> None:
    """Guards minutes of fetching that cannot end well."""
    (small_disk / "other").write_bytes(b"\0" * len(tiny))
    message = place.refused("pull", REPOSITORY)
    blob = place.hub_cache / "models--owner--tiny-GGUF" / "blobs"
    assert message.startswith(f"{blob}/")
    assert " needs about " in message
    assert message.endswith(" MiB are free; make room, or set HF_HOME to another folder.")
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
