"""What OpenVINO and llama.cpp say of the same model, compared: the logprobs of the likely tokens.

    python -m tests.families [--dtype bfloat16] [MODEL.gguf ...]

prints a table over the checkpoints of `families_for_tests` and over the models that are named.
Where OpenVINO can page on this machine our backend is asked, in a process of its own, because a
compilation that fails may take its process along. Elsewhere the converted graph itself is asked, in
float32: what the conversion made is then seen, and the kernels are not.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov

from jitney.backends.kinds import load, load_process
from jitney.backends.openvino import families
from jitney.backends.openvino.convert import write_model
from jitney.core.backend import Backend
from jitney.core.batch import Open, Release
from jitney.errors import SetupError
from jitney.models.gguf import read_header
from jitney.tokenizers.tokenizer import read_tokenizer
from tests.conformance.driver import Driver, greedy
from tests.families_for_tests import FAMILIES, write_family

LENGTHS = (8, 40, 150, 400)
"""Tokens of the prompts: a rotary embedding that is a little wrong shows late."""
LENGTHS_REAL = (64, 1100)
LENGTHS_LONG = (1100,)
OBSERVED = 4
"""Positions at the end of each prompt whose logprobs are compared."""
LIKELY = -4.0
ROOM = 512
"""Tokens of memory: the checkpoints' original length, beyond which some have other factors."""
ROOM_REAL = 2048

Listed = list[dict[int, float]]
"""The logprobs of the likeliest tokens at each position that was observed."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and what it is asked."""

    model: Path
    prompts: tuple[tuple[int, ...], ...]
    room: int = ROOM


def tiny_case(folder: Path, name: str, lengths: Sequence[int] = LENGTHS, room: int = ROOM) -> Case:
    """A random checkpoint of a family, written into the folder."""
    model = folder / f"{name}.gguf"
    write_family(model, FAMILIES[name])
    random = np.random.default_rng(0)
    # The first four tokens are special.
    prompts = (random.integers(4, 268, length) for length in lengths)
    return Case(model, tuple(tuple(map(int, prompt)) for prompt in prompts), room)


def real_case(model: Path, text: str, lengths: Sequence[int] = LENGTHS_REAL) -> Case:
    """A model that somebody has, asked about beginnings of a text."""
    tokenizer = read_tokenizer(model)
    tokens = tuple(tokenizer.encode(text, special=False))
    first = (tokenizer.vocabulary.bos_token,) if tokenizer.vocabulary.adds_bos else ()
    begins = tuple(token for token in first if token is not None)
    prompts = tuple((begins + tokens)[:length] for length in lengths)
    return Case(model, prompts, ROOM_REAL)


def by_llamacpp(case: Case) -> Listed:
    """What llama.cpp says, on one thread and without its fused attention."""
    settings = {
        "model": str(case.model),
        "kv_tokens": case.room,
        "slots": 1,
        "max_num_batched_tokens": case.room,
        "threads": 1,
        "flash_attention": False,
    }
    with closing(load("llamacpp", settings)) as backend:
        return _observed(backend, case)


@contextmanager
def paged(case: Case, folder: Path, dtype: str = "float32") -> Iterator[Backend]:
    """Our backend with a converted model. Raises SetupError where OpenVINO cannot page here."""
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
        return _observed(backend, case)


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


def difference(found: Listed, expected: Listed) -> float:
    """The largest difference in the logprob of a token that is likely by `expected`."""
    assert len(found) == len(expected) > 0, "each side is to be asked the same"
    gaps = [
        # One that is not listed is at most as likely as the last that is.
        abs(here.get(token, min(here.values())) - logprob)
        for here, there in zip(found, expected, strict=True)
        for token, logprob in there.items()
        if logprob >= LIKELY
    ]
    return max(gaps)


def _observed(backend: Backend, case: Case) -> Listed:
    driver = Driver(backend)
    listed: Listed = []
    for prompt in case.prompts:
        driver.run(operations=[Open(0, greedy(len(prompt)))])
        samples = driver.observe(0, prompt, len(prompt) - OBSERVED, span=case.room)
        driver.run(operations=[Release(0)])
        for sample in samples:
            assert sample.logprob is not None, sample.fault
            listed.append(dict(sample.logprob.top))
    return listed


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
