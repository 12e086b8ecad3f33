"""transformers as a peer: absent, and with libraries of the same form in its place."""

import contextlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any  # Any: the arguments of another library

import pytest

from jitney_lab.bench.peers import libraries
from jitney_lab.bench.peers.hf_folder import write_folder
from jitney_lab.bench.peers.hf_transformers import HfTransformers
from jitney_lab.bench.workload import Job, Workload, fixed

MODEL = Path("folder/m.gguf")


class Model:
    """Takes batches as `generate` does, and notes their form."""

    config = SimpleNamespace(vocab_size=1000)

    def __init__(self, lost: int = 0) -> None:
        self.batches: list[tuple[list[list[int]], list[list[int]], int]] = []
        self._lost = lost

    def to(self, dtype: str) -> "Model":
        assert dtype == "f32"
        return self

    def eval(self) -> "Model":
        return self

    def generate(self, rows: list[list[int]], **given: Any) -> SimpleNamespace:
        assert given["max_new_tokens"] == given["min_new_tokens"]
        self.batches.append((rows, given["attention_mask"], given["max_new_tokens"]))
        return SimpleNamespace(
            shape=(len(rows), len(rows[0]) + given["max_new_tokens"] - self._lost)
        )


def peer(monkeypatch: pytest.MonkeyPatch, model: Model) -> HfTransformers:
    def load(folder: str, *, gguf_file: str) -> Model:
        assert (folder, gguf_file) == ("folder", "m.gguf")
        return model

    torch = SimpleNamespace(
        set_num_threads=lambda count: None,
        float32="f32",
        tensor=lambda rows: rows,
        inference_mode=contextlib.nullcontext,
    )
    kind = SimpleNamespace(from_pretrained=load)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace(AutoModelForCausalLM=kind))
    return HfTransformers(MODEL, "float32")


def test_as_many_jobs_as_clients_are_in_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    assert peer(monkeypatch, model).rate(fixed(5, 8, 4, seed=1, clients=2)) > 0
    assert [len(rows) for rows, _, _ in model.batches] == [2, 2, 1]
    assert all(100 <= token < 1000 for rows, _, _ in model.batches for row in rows for token in row)


def test_short_prompts_are_padded_on_the_left(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    jobs = (
        Job(number=0, prompt_count=3, completion_count=2),
        Job(number=1, prompt_count=5, completion_count=7),
    )
    peer(monkeypatch, model).rate(Workload(name="w", seed=1, jobs=jobs, clients=2))
    ((rows, mask, wanted),) = model.batches
    assert rows[0][:2] == [0, 0]
    assert mask == [[0, 0, 1, 1, 1], [1] * 5]
    assert wanted == 7


def test_a_short_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="made a batch of"):
        peer(monkeypatch, Model(lost=1)).rate(fixed(2, 8, 4, seed=1, clients=2))


@pytest.mark.parametrize(
    ("there", "count"),
    [((), 0), (("transformers",), 0), (("torch",), 0), (("transformers", "torch"), 2)],
)
def test_it_is_a_peer_only_with_both_packages(
    monkeypatch: pytest.MonkeyPatch, there: tuple[str, ...], count: int
) -> None:
    monkeypatch.setattr(libraries, "is_installed", lambda name: name in there)
    assert len(libraries.library_peers(MODEL, 4)) == count


def test_a_file_is_unpacked_with_its_tokenizer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Guards the form that vLLM reads: a model that counts as packed is not written."""
    written: list[tuple[str, str, object]] = []

    class Loaded:
        config = SimpleNamespace(quantization_config="gguf")

        def state_dict(self) -> str:
            return "weights"

    class Unpacked:
        def __init__(self, config: SimpleNamespace) -> None:
            assert not hasattr(config, "quantization_config")

        def load_state_dict(self, state: str) -> None:
            self.state = state

        def save_pretrained(self, folder: str) -> None:
            written.append(("model", folder, self.state))

    class Tokenizer:
        def save_pretrained(self, folder: str) -> None:
            written.append(("tokenizer", folder, None))

    def loading(kind: type) -> Any:
        def load(*, pretrained_model_name_or_path: str, gguf_file: str, dtype: str = "") -> Any:
            assert (pretrained_model_name_or_path, gguf_file) == ("folder", "m.gguf")
            return kind()

        return load

    models = SimpleNamespace(
        from_pretrained=loading(Loaded), from_config=lambda config, dtype: Unpacked(config)
    )
    tokenizers = SimpleNamespace(from_pretrained=loading(Tokenizer))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(bfloat16="bf16"))
    library = SimpleNamespace(AutoModelForCausalLM=models, AutoTokenizer=tokenizers)
    monkeypatch.setitem(sys.modules, "transformers", library)
    write_folder(MODEL, tmp_path)
    assert written == [("model", str(tmp_path), "weights"), ("tokenizer", str(tmp_path), None)]
