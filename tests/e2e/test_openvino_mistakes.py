"""OpenVINO on bad input and bad disks: a sentence or a correct result, each time.

The model is a tiny one, and every conversion is a real one, in its child process. Converting needs
the libraries alone, so it is tested wherever they are installed.
"""

import multiprocessing
import resource
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from jitney.loading import backend_failure
from tests.backends_for_tests import absence_reason, needs, share_verdicts

if reason := absence_reason("openvino"):
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney import LLM, SamplingParams
from jitney.backends.kinds import kind_of
from jitney.backends.openvino.convert import write_model
from jitney.config import Settings
from jitney.errors import ModelError
from jitney.loading import check_accepted, ready_model
from tests.e2e import program
from tests.models_for_tests import TinyShape, write_tiny_gguf

WAIT_S = 120.0
XML, BIN = "openvino_model.xml", "openvino_model.bin"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A folder that holds nothing but what is known of the backends."""
    return share_verdicts(tmp_path / "cache")


def ready(source: Path, cache: Path) -> Path:
    settings = Settings(model=source, backend="openvino", cache_dir=cache)
    if backend_failure("openvino", settings) is None:
        return ready_model(settings)
    # Nobody gets so far where it cannot run, but what follows is the same.
    kind = kind_of("openvino")
    check_accepted(kind, settings, source)
    return kind.ready(source, settings)


def refusal(source: Path, cache: Path) -> str:
    """One sentence that names a file; nothing is left that would be taken next time."""
    with pytest.raises(ModelError) as caught:
        ready(source, cache)
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert cache.is_file() or not [*cache.rglob(XML), *cache.rglob("*.partial")]
    return text


def test_an_unknown_family_is_refused_before_it_is_converted(tmp_path: Path, cache: Path) -> None:
    """Guards against a conversion that passes over what it does not know."""
    path = tmp_path / "gemma.gguf"
    write_tiny_gguf(path, shape=TinyShape(architecture="gemma"))
    told = refusal(path, cache)
    assert "its architecture is gemma" in told
    assert [path.name for path in cache.iterdir()] == ["probes"]


def test_after_it_was_made_again_the_model_answers_the_same(tmp_path: Path, source: Path) -> None:
    """Guards the whole way from a damaged cache to text."""
    needs("openvino", threads=1, dtype="float32")
    cache = share_verdicts(tmp_path / "cache")
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    texts = []
    for _ in range(2):
        with LLM(
            source, backend="openvino", cache_dir=cache, kv_tokens=512, threads=1, dtype="float32"
        ) as llm:
            texts.append(llm.generate("the", params)[0].outputs[0].text)
        for path in cache.rglob(BIN):
            path.write_bytes(path.read_bytes()[:-1000])
    assert texts[0] == texts[1] != ""


@pytest.fixture(params=[512, 1000, 1550, 1700])
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A disk of so many KiB.

    It fills up while the weights are written anew, while the library writes its own, while it
    writes the graph, of which it says nothing, and while the corrected model is written.
    """
    with program.small_disk(tmp_path / "disk", request.param * 1024) as folder:
        yield folder


def test_a_disk_that_fills_up_is_a_sentence(source: Path, small_disk: Path) -> None:
    """Guards against a model cut short, and against blame on the file that was converted."""
    with pytest.raises(ModelError) as caught:
        write_model(source, small_disk)
    told = str(caught.value)
    assert "the disk is probably full: make room, or choose another cache folder." in told
    assert "\n" not in told


def _write_little(source: Path, folder: Path, answer: Connection) -> None:
    size = 900_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        write_model(source, folder)
        answer.send("converted")
    except ModelError as error:
        answer.send(str(error))


def test_files_that_cannot_grow_are_a_sentence(tmp_path: Path) -> None:
    """Guards against files cut short where no mount is allowed: native code is not told."""
    source = tmp_path / "wide.gguf"
    write_tiny_gguf(source, shape=TinyShape(width=256))
    folder = tmp_path / "folder"
    folder.mkdir()
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_write_little, args=(source, folder, sending))
    process.start()
    assert receiving.poll(WAIT_S)
    told = receiving.recv()
    process.join(WAIT_S)
    assert told.startswith(f"{source} was not converted for OpenVINO, because files in ")


def test_too_little_room_is_told_before_anything_is_converted(
    source: Path, small_disk: Path
) -> None:
    """Guards minutes of work that cannot end well."""
    told = refusal(source, share_verdicts(small_disk / "cache"))
    assert "needs about" in told
    assert "choose another cache folder (--cache-dir)." in told


@pytest.mark.parametrize(
    ("name", "other", "told"),
    [
        # A tensor that is not there, which the native reader looks up and does not find.
        (b"blk.0.attn_q.weight", b"blk.9.attn_q.weight", "the file is probably damaged"),
        # Two tensors of different shapes under each other's names.
        (b"blk.0.attn_q.weight", b"blk.0.ffn_up.weight", "cannot be converted for OpenVINO"),
    ],
)
def test_damage_behind_the_header_is_a_sentence(
    cache: Path, source: Path, name: bytes, other: bytes, told: str
) -> None:
    """Guards this process against what native code does with a damaged file."""
    kept = b"?" * len(other)
    content = source.read_bytes().replace(other, kept)
    source.write_bytes(content.replace(name, other).replace(kept, name))
    assert told in refusal(source, cache)
