"""An exported OpenVINO folder as a model, end to end."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends_for_tests import absence_reason, failure, needs, session_cache, share_verdicts

if reason := absence_reason("openvino"):
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("gguf", reason="needs the gguf package")

from jitney import LLM, SamplingParams
from jitney.backends.kinds import kind_of
from jitney.config import Settings
from jitney.errors import ModelError
from jitney.loading import ready_model
from jitney.models import embedded
from tests.families_for_tests import beginning
from tests.folders_for_tests import write_folder
from tests.models_for_tests import write_tiny_gguf

FILES = ("openvino_model.xml", "openvino_model.bin")
GREEDY = SamplingParams(temperature=0, max_tokens=24)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def answers(llm: LLM) -> list[object]:
    """What a person and a program see of it."""
    chat = llm.chat(QUESTION, GREEDY)[0].outputs[0]
    plain = llm.generate("The capital of France is", GREEDY)[0]
    return [chat.text, chat.token_ids, chat.finish_reason, plain.prompt_token_ids, plain.outputs]


def test_a_folder_answers_as_the_gguf_that_it_came_from(tmp_path: Path) -> None:
    """Guards tokenizer, template, endings and sizes of a folder, all at once."""
    needs("openvino")
    source, folder = beginning(embedded.path_in(Settings().cache_dir), 3), tmp_path / "folder"
    cache = session_cache()
    # The same weights for both: their format depends on the numbers to compute with.
    settings = Settings(
        model=source,
        backend="openvino",
        threads=1,
        dtype="float32",
        cache_dir=cache,
    )
    converted = ready_model(settings)
    folder.mkdir()
    for name in FILES:
        (folder / name).symlink_to(converted / name)
    write_folder(folder, source, digits_apart=True)
    usual: dict[str, object] = {"kv_tokens": 1024, "max_num_seqs": 2, "threads": 1}
    usual |= {"dtype": "float32", "batch_invariant": "off", "cache_dir": cache}
    with LLM(source, config=None, backend="openvino", **usual) as llm:
        expected = answers(llm)
    with LLM(folder, config=None, **usual) as llm:
        assert answers(llm) == expected
    assert expected[0], "it says something"


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model."""
    base = tmp_path_factory.mktemp("exported")
    source = base / "tiny.gguf"
    write_tiny_gguf(source)
    cache = share_verdicts(base / "cache")
    # The conversion alone, which needs no processor that can run the model.
    settings = Settings(model=source, backend="openvino", cache_dir=cache)
    converted = kind_of("openvino").ready(source, settings)
    folder = base / "folder"
    folder.mkdir()
    for name in FILES:
        shutil.copyfile(converted / name, folder / name)
    write_folder(folder, source)
    return folder


CLOSED = """
import signal, sys
from jitney import LLM
LLM(sys.argv[1], kv_tokens=512, threads=1, dtype="float32", cache_dir=sys.argv[2]).close()
signal.signal(signal.SIGINT, lambda *_: print("heard"))
signal.raise_signal(signal.SIGINT)
"""


def test_a_signal_after_a_closed_model_is_heard(exported: Path, tmp_path: Path) -> None:
    """Guards Ctrl-C: it ended the process with a segmentation fault, once a model was closed."""
    needs("openvino")
    command = [sys.executable, "-c", CLOSED, str(exported), str(share_verdicts(tmp_path / "cache"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "heard\n"), done.stderr


def open_folder(folder: Path, cache: Path) -> None:
    """Load a folder; where OpenVINO cannot run, by its own backend, which nobody would get."""
    if failure("openvino", threads=1, dtype="float32") is None:
        LLM(folder, kv_tokens=512, threads=1, dtype="float32", cache_dir=cache).close()
        return
    settings = Settings(model=folder, kv_tokens=512, threads=1, dtype="float32", cache_dir=cache)
    kind = kind_of("openvino")
    kind.load(kind.values(settings, folder)).close()


def test_an_undamaged_folder_is_refused_for_nothing_but_the_processor(
    tmp_path: Path, exported: Path
) -> None:
    """Guards the next test: what it refuses must be the damage."""
    if failure("openvino", threads=1, dtype="float32") is None:
        open_folder(exported, tmp_path)
        return
    with pytest.raises(ModelError, match="PagedAttention"):
        open_folder(exported, tmp_path)


@pytest.mark.parametrize("damage", ["short weights", "bad graph", "no config", "no tokenizer"])
def test_a_damaged_folder_is_a_sentence(tmp_path: Path, exported: Path, damage: str) -> None:
    """Guards against native code that reads beyond the end of a file."""
    folder = tmp_path / "folder"
    shutil.copytree(exported, folder)
    graph, weights = (folder / name for name in FILES)
    match damage:
        case "short weights":
            weights.write_bytes(weights.read_bytes()[:-1])
        case "bad graph":
            graph.write_bytes(graph.read_bytes()[:-100])
        case "no config":
            (folder / "config.json").unlink()
        case _:
            (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError) as caught:
        open_folder(folder, share_verdicts(tmp_path / "cache"))
    text = str(caught.value)
    assert "PagedAttention" not in text
    assert str(folder) in text
    assert "\n" not in text
    assert text.endswith(".")
