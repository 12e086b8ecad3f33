"""What OpenVINO and llama.cpp say of the same model, compared: the logprobs of the likely tokens.

    python -m tests.families [--dtype bfloat16] [MODEL.gguf ...]

prints a table over the checkpoints of `families_for_tests` and over the models that are named.
Where OpenVINO can page on this machine our backend is asked. Elsewhere the converted graph itself
is asked, in float32: what the conversion made is then seen, and the kernels are not.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import openvino as ov

from jitney.backends.kinds import load_process
from jitney.backends.openvino import families
from jitney.backends.openvino.convert import write_model
from jitney.core.backend import Backend
from jitney.errors import SetupError
from jitney.models.gguf import read_header
from tests.compared_for_tests import (
    OBSERVED,
    Case,
    Listed,
    by_llamacpp,
    difference,
    observed,
    real_case,
    tiny_case,
)
from tests.families_for_tests import FAMILIES


@contextmanager
def paged(case: Case, folder: Path, dtype: str = "float32") -> Iterator[Backend]:
    """Our backend with a converted model, in another process, because a compilation that fails may
    take its process along. Raises SetupError where OpenVINO cannot page here."""
    number = families.SHORT_NAMES[dtype]
    settings = {
        "model": str(folder),
        "vocabulary": str(case.model),
        "kv_tokens": case.room,
        "slots": 1,
        "max_num_batched_tokens": case.room,
        "model_len_max": case.room,
        "threads": 2,
        "inference_precision": number,
        "kv_precision": number,
    }
    with closing(load_process("openvino", settings)) as backend:
        yield backend


def by_openvino(case: Case, folder: Path, dtype: str = "float32") -> Listed:
    """What our backend says."""
    with paged(case, folder, dtype) as backend:
        return observed(backend, case)


def by_graph(case: Case, model: ov.Model, first: int = 0) -> Listed:
    """What a converted graph says that was not made to page: attention over all of a prompt.

    A prompt stands from position `first` on: only distances count, so that it says the same there.
    """
    properties = {
        "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32",
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
        "INFERENCE_NUM_THREADS": 2,
    }
    compiled = ov.Core().compile_model(model, "CPU", properties)
    listed: Listed = []
    for prompt in case.prompts:
        inputs = {
            "input_ids": np.array([prompt], np.int64),
            "attention_mask": np.ones((1, len(prompt)), np.int64),
            "position_ids": np.arange(first, first + len(prompt), dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        outputs = compiled.create_infer_request().infer(inputs)
        rows = next(iter(outputs.values()))[0, -OBSERVED - 1 :].astype(np.float64)
        rows -= rows.max(axis=-1, keepdims=True)
        rows -= np.log(np.exp(rows).sum(axis=-1, keepdims=True))
        listed += [dict(enumerate(map(float, row))) for row in rows]
    return listed


def read_graph(folder: Path) -> ov.Model:
    """The graph of a converted model."""
    return ov.Core().read_model(folder / families.FILES[0])


def _row(case: Case, folder: Path, dtype: str) -> str:
    """What stands behind the model's name in the table."""
    refusal = families.refusal(read_header(case.model))
    if refusal is not None:
        return f"llama.cpp alone: {refusal} |"
    folder.mkdir()
    write_model(case.model, folder, weights="float16" if dtype == "bfloat16" else "packed")
    expected = by_llamacpp(case)
    try:
        found, kind = by_openvino(case, folder, dtype), f"openvino, {dtype}"
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
        found, kind = by_graph(case, read_graph(folder)), "openvino, the converted graph"
    return f"{kind} | {difference(found, expected):.5f}"


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.families")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("models", nargs="*", type=Path)
    given = parser.parse_args(arguments)
    text = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    sys.stdout.write("| model | backend | largest logprob difference to llama.cpp |\n")
    sys.stdout.write("| --- | --- | --- |\n")
    with tempfile.TemporaryDirectory() as base:
        cases = {name: tiny_case(Path(base), name) for name in FAMILIES}
        cases |= {model.stem: real_case(model.resolve(), text) for model in given.models}
        for name, case in cases.items():
            sys.stdout.write(f"| {name} | {_row(case, Path(base, name), given.dtype)} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
