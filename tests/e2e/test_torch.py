"""The torch backend says what others say: transformers of folders, llama.cpp of GGUFs."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.backends_for_tests import absence_reason, needs, session_cache

if reason := absence_reason("torch"):
    pytest.skip(reason, allow_module_level=True)
pytest.importorskip("gguf", reason="needs the gguf package")

import torch

from jitney import LLM, SamplingParams
from jitney.backends.kinds import load
from jitney.config import cache_folder, environment
from jitney.models import embedded
from tests.compared_for_tests import (
    LENGTHS,
    Case,
    Listed,
    by_llamacpp,
    difference,
    observed,
    real_case,
    tiny_case,
)
from tests.families_for_tests import FAMILIES, beginning

BOUND = 0.1
"""Largest difference in a logprob to llama.cpp, which keeps keys and values as float16. 0.03 was
seen."""
BOUND_REAL = 1.0
"""The same for weights of 4 bits, where llama.cpp rounds activations to 8 bits."""
BOUND_FOLDER = 1e-3
"""The same to transformers, in float32 on both sides. 0.00004 was seen."""
BOUND_BFLOAT16 = 0.5
"""The same in bfloat16 here and float32 there. 0.13 was seen."""
BOUND_FLOAT16 = 0.06
"""The same in float16 here, which has three bits more."""
LENGTHS_REAL = (200,)
LAYERS = 3
PROMPTS, LENGTH = 50, 64

READ = [name for name in FAMILIES if not name.startswith("phi")]


def settings(model: Path, room: int, dtype: str = "float32") -> dict[str, object]:
    """A backend with room for one long sequence, or several short ones."""
    return {
        "model": str(model),
        "kv_tokens": room,
        "slots": 8,
        "max_num_batched_tokens": room,
        "threads": 1,
        "dtype": dtype,
        "kv_dtype": dtype,
    }


def by_torch(case: Case, dtype: str = "float32") -> Listed:
    """What the torch backend says."""
    with closing(load("torch", settings(case.model, case.room, dtype))) as backend:
        return observed(backend, case)


@pytest.fixture(scope="module")
def hub_models() -> Any:
    """What writes folders. It needs transformers, which takes seconds to import."""
    return pytest.importorskip("tests.hub_models_for_tests", reason="needs transformers")


HUB_NAMES = (
    *("llama-3.1", "llama-linear", "smollm2", "mistral", "qwen2", "qwen2.5-yarn", "qwen3"),
    *("gemma3", "smollm3"),
)


def by_transformers(model: Any, case: Case, hub_models: Any) -> Listed:
    """What transformers says at the last positions of each prompt."""
    listed: Listed = []
    for prompt in case.prompts:
        rows = hub_models.transformers_logits(model, prompt)[-5:].log_softmax(-1)
        listed += [dict(enumerate(row.tolist())) for row in rows]
    return listed


@pytest.mark.parametrize("name", HUB_NAMES)
def test_a_folder_says_what_transformers_says(name: str, hub_models: Any, tmp_path: Path) -> None:
    """Guards each family: names of tensors, norms, biases, windows, and every rotary embedding."""
    model = hub_models.write_hub_model(tmp_path, name)
    prompts = tuple(tuple(range(4, 4 + min(n, 250))) * (1 + n // 251) for n in LENGTHS)
    case = Case(tmp_path, prompts)
    expected = by_transformers(model, case, hub_models)
    assert difference(by_torch(case), expected) <= BOUND_FOLDER
    assert difference(by_torch(case, "bfloat16"), expected) <= BOUND_BFLOAT16
    assert difference(by_torch(case, "float16"), expected) <= BOUND_FLOAT16


def test_all_families_of_folders_are_tried(hub_models: Any) -> None:
    """Guards the list above, which stands without an import of transformers."""
    assert set(HUB_NAMES) == set(hub_models.HUB_MODELS)


@pytest.mark.parametrize("name", READ)
def test_a_gguf_says_what_llamacpp_says(name: str, tmp_path: Path) -> None:
    """Guards the order of rows in a GGUF, its keys, and the tensors of factors."""
    case = tiny_case(tmp_path, name)
    needs("llamacpp")
    assert difference(by_torch(case), by_llamacpp(case)) <= BOUND


def test_the_embedded_model_says_what_llamacpp_says() -> None:
    """Guards real weights, packed in 4 bits."""
    cache = cache_folder(environment())
    if not embedded.is_there(cache):
        pytest.skip("the embedded model is not at hand")
    needs("llamacpp")
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text(encoding="utf-8")
    case = real_case(beginning(embedded.path_in(cache), LAYERS), text, LENGTHS_REAL)
    assert difference(by_torch(case), by_llamacpp(case)) <= BOUND_REAL


def prompts_of() -> list[list[int]]:
    """Fifty prompts of one length, so that transformers can compute them together."""
    random = torch.Generator().manual_seed(5)
    prompts: list[list[int]] = torch.randint(4, 260, (PROMPTS, 24), generator=random).tolist()
    return prompts


def continued(model: Any, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
    """The likeliest tokens after each prompt, by transformers."""
    options = {"do_sample": False, "max_new_tokens": LENGTH, "min_new_tokens": LENGTH}
    with torch.inference_mode():
        tokens = model.generate(torch.tensor(prompts), **options)
    return [row[len(prompts[0]) :] for row in tokens.tolist()]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory, hub_models: Any) -> Iterator[tuple[LLM, Any]]:
    """An engine on a folder, and transformers' model of it."""
    folder = tmp_path_factory.mktemp("llm")
    model = hub_models.write_hub_model(folder, "qwen3")
    with LLM(
        folder,
        config=None,
        backend="torch",
        dtype="float32",
        threads=1,
        max_model_len=128,
        batch_invariant="on",
        cache_dir=session_cache(),
    ) as made:
        yield made, model


def test_fifty_greedy_texts_are_those_of_transformers(llm: tuple[LLM, Any]) -> None:
    """Guards the whole way through the engine: cut prompts, mixed batches, blocks taken again."""
    engine, model = llm
    prompts = prompts_of()
    params = SamplingParams(temperature=0, max_tokens=LENGTH, min_tokens=LENGTH)
    found = engine.generate([{"prompt_token_ids": each} for each in prompts], params)
    texts = [list(each.outputs[0].token_ids) for each in found]
    assert texts == continued(model, prompts)


def test_a_text_is_the_same_alone_and_beside_others(llm: tuple[LLM, Any]) -> None:
    """Guards equal texts through the engine: to the last bit of a logprob, greedy and drawn."""
    engine, _ = llm
    prompts = [{"prompt_token_ids": each[: 4 + at]} for at, each in enumerate(prompts_of()[:12])]
    params = [
        SamplingParams(temperature=at % 2, seed=at, max_tokens=16, logprobs=5, ignore_eos=True)
        for at in range(len(prompts))
    ]
    together = engine.generate(prompts, params)
    for prompt, param, found in zip(prompts, params, together, strict=True):
        (alone,) = engine.generate([prompt], param)
        assert alone.outputs[0].logprobs == found.outputs[0].logprobs
