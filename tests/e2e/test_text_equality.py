"""Invariant 4 with a real model, in the default dtype: the same request, the same text.

Whatever was batched, cut, copied, cached, preempted, restored or lost with a killed process, each
text equals that of the request alone to the letter, and each logprob to the last bit. Every drawn
token is checked against what (seed, position) draws from the distribution that the run itself
reports. The comparisons are themselves tested: they must refuse another prompt's answer, and
another draw. Two backends round in two ways, so between them only nearness is asked for.

Every test of a backend runs the same eight requests, or the first four where more would show no
more; each second one is drawn with a seed. The model is the first layers of the embedded one: its
kernels see the same shapes, and a pass takes a fourth of the time.
"""

import math
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from benchmarks.invariance import PROMPTS, QUESTIONS, SYSTEM
from jitney import LLM, Logprob, RequestOutput, SamplingParams
from jitney.backends.process.client import ProcessBackend
from jitney.config import Settings
from jitney.loading import ready_model
from jitney.sampling.draw import uniform
from tests.backends_for_tests import before_batch, needs
from tests.families_for_tests import beginning

LOGPROB_BOUND = 1.0
"""Between two backends, or two shapes of pass, a logit moves by up to 0.97
(docs/project/log/memory_layouts.md)."""

LIKELY = -4.0
"""Distributions are compared over tokens with a chance of two in a hundred or more: the logprobs of
less likely ones move further, and decide nothing."""

LENGTH = 24
MIDDLE = LENGTH // 3
"""The batch before which something happens: every answer is then under way, and none is over."""
WAIT_S = 240.0

GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, logprobs=10, ignore_eos=True)
HALF = SamplingParams(temperature=0, max_tokens=LENGTH // 2, ignore_eos=True)
SEED = 7
KEPT = 8
HEAT = 0.8
SEEDED = SamplingParams(
    temperature=HEAT, top_k=KEPT, seed=SEED, max_tokens=LENGTH, logprobs=10, ignore_eos=True
)
THINGS = (
    *("a bus", "the sea", "bread", "winter", "Paris", "bees", "glass", "rice", "trains", "sleep"),
    *("paper", "stars", "rain", "music", "coffee", "bridges", "cats", "salt", "maps", "clocks"),
    *("trees", "iron", "boats", "cheese", "snow"),
)
FIFTY = [
    ask.format(thing)
    for ask in ("Tell me about {}.", "Write a story about {}. Once upon a time")
    for thing in THINGS
]
SHORT = SamplingParams(temperature=0, max_tokens=16, logprobs=10, ignore_eos=True)
PARAMS = [GREEDY, SEEDED] * (len(PROMPTS) // 2)
SOME = 4
"""Requests of a test that is not about large batches."""
LAYERS = 3


@dataclass(frozen=True, slots=True)
class Open:
    """Opens the model with a small memory, on one backend. Conversions stay beside the model."""

    model: Path
    usual: dict[str, object]

    def __call__(self, **settings: object) -> LLM:
        small = {"max_model_len": 512, "max_num_seqs": 8, "cache_dir": self.model.parent}
        return LLM(self.model, config=None, **{**small, **self.usual, **settings})


ENGINES: dict[str, dict[str, object]] = {
    # Two threads of llama.cpp spin for each other on a busy machine. Its kernel is named, because
    # which one is chosen depends on their speed.
    "llamacpp": {
        "backend": "llamacpp",
        "flash_attention": "off",
        "threads": 1,
        "batch_invariant": "on",
    },
    "openvino": {"backend": "openvino", "batch_invariant": "on"},
}


@pytest.fixture(scope="module")
def model() -> Path:
    """The first layers of the embedded model, in the cache folder of all workers."""
    return beginning(ready_model(Settings(backend="llamacpp")), LAYERS)


@pytest.fixture(scope="module", params=list(ENGINES))
def open_llm(request: pytest.FixtureRequest, model: Path) -> Open:
    """Each backend in turn."""
    needs(request.param)
    return Open(model, ENGINES[request.param])


@pytest.fixture(scope="module")
def solo(open_llm: Open) -> Iterator[LLM]:
    """Runs each request by itself: one slot, whole prompt in one span, nothing reused."""
    with open_llm(max_model_len=1024, max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield llm


@pytest.fixture(scope="module")
def alone(solo: LLM) -> list[RequestOutput]:
    """Every request by itself."""
    return [solo.generate(*asked)[0] for asked in zip(PROMPTS, PARAMS, strict=True)]


def assert_same(got: RequestOutput, expected: RequestOutput) -> bool:
    """Whether greedy tokens are equal; raises where they differ by more than rounding can do."""
    ours, theirs = got.outputs[0], expected.outputs[0]
    assert ours.logprobs is not None
    assert theirs.logprobs is not None
    for position, (token, other) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=True)):
        here, there = ours.logprobs[position], theirs.logprobs[position]
        if token != other:
            assert_near(here, there, position)
            tie = abs(there[token].logprob - there[other].logprob)
            assert tie <= LOGPROB_BOUND, f"position {position}: no tie, {tie} apart"
            return False
        gap = abs(here[token].logprob - there[token].logprob)
        assert gap <= LOGPROB_BOUND, f"position {position}: logprob differs by {gap}"
    assert ours.text == theirs.text
    return True


def assert_drawn(output: RequestOutput) -> None:
    """Every token is the one that (seed, position) draws from the distribution seen there.

    Only the KEPT best can be drawn, and their logprobs are known, so the draw can be repeated:
    by token id, in order, until the drawn share of their mass is reached.
    """
    completion = output.outputs[0]
    prompt_count = len(output.prompt_token_ids or ())
    assert completion.logprobs is not None
    for position, (token, entry) in enumerate(
        zip(completion.token_ids, completion.logprobs, strict=True)
    ):
        best = sorted(entry.items(), key=lambda item: -item[1].logprob)[:KEPT]
        weights = {each: math.exp(logprob.logprob / HEAT) for each, logprob in best}
        drawn = uniform(SEED, prompt_count + position) * sum(weights.values())
        below = sum(weight for each, weight in weights.items() if each < token)
        assert token in weights, f"position {position}: {token} was not among those kept"
        slack = 1e-4 * sum(weights.values())
        assert below - slack <= drawn <= below + weights[token] + slack, f"position {position}"


def assert_near(here: dict[int, Logprob], there: dict[int, Logprob], position: int) -> None:
    """Both runs saw the same distribution, so that only rounding can have moved the choice."""
    likely = [token for token, each in there.items() if each.logprob >= LIKELY]
    for token in likely:
        # One that is not listed here is at most as likely as the last that is.
        last = min(each.logprob for each in here.values())
        other = here[token].logprob if token in here else last
        gap = abs(other - there[token].logprob)
        assert gap <= LOGPROB_BOUND, f"position {position}: token {token} differs by {gap}"


def assert_equal(got: list[RequestOutput], expected: list[RequestOutput]) -> None:
    """All texts are equal to the letter, and all logprobs to the bit."""
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.outputs[0].text == theirs.outputs[0].text
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
        assert ours.outputs[0].logprobs == theirs.outputs[0].logprobs


@pytest.mark.parametrize("shift", [1, 2])
def test_the_comparison_refuses_another_answer(alone: list[RequestOutput], shift: int) -> None:
    """Guards the guard: a mistake of memory looks like the answer to something else."""
    for at in range(len(alone)):
        with pytest.raises(AssertionError):
            assert_equal([alone[at - shift]], [alone[at]])


def test_seeded_answers_are_drawn_by_their_seed_alone(alone: list[RequestOutput]) -> None:
    """Guards the draw, by which all others are measured; greedy tokens are not what it draws."""
    for output, params in zip(alone, PARAMS, strict=True):
        if params is SEEDED:
            assert_drawn(output)
    with pytest.raises(AssertionError):
        assert_drawn(alone[0])


def test_batched_equals_alone_beside_7_and_63_others(
    open_llm: Open, alone: list[RequestOutput]
) -> None:
    """Guards rows, slots and positions of a mixed batch, here backwards; and large batches, whose
    kernels may be others."""
    strangers = [f"{thing} and {other}" for thing in THINGS for other in THINGS[:3]][:56]
    # They end half-way, so that a batch shrinks as well.
    params = [*[HALF] * 28, *PARAMS, *[HALF] * 28]
    with open_llm(max_num_seqs=64, max_model_len=256, enable_prefix_caching=False) as llm:
        backwards = llm.generate(PROMPTS[::-1], PARAMS[::-1])
        assert_equal(backwards[::-1], alone)
        outputs = llm.generate([*strangers[:28], *PROMPTS, *strangers[28:]], params)
        assert_equal(outputs[28 : 28 + len(PROMPTS)], alone)


def test_a_long_prompt_beside_others_equals_the_same_alone(open_llm: Open, solo: LLM) -> None:
    """Guards sequences of more than 512 tokens, which kernels may cut when they are alone."""
    prompts = [f"{SYSTEM * 26}\nQuestion: {question}\nAnswer:" for question in QUESTIONS[:2]]
    expected = [solo.generate(prompt, SHORT)[0] for prompt in prompts]
    assert all(len(output.prompt_token_ids or ()) > 512 for output in expected)
    with open_llm(max_model_len=1024, max_num_seqs=4) as llm:
        beside = llm.generate([PROMPTS[0], *prompts, PROMPTS[1]], SHORT)
        assert_equal(beside[1:3], expected)
        assert_equal([llm.generate(prompt, SHORT)[0] for prompt in prompts], expected)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_prompt_equals_whole(
    open_llm: Open, alone: list[RequestOutput], chunk: int
) -> None:
    """Guards spans: a prompt in pieces is the same prompt."""
    count = 2 if chunk == 1 else SOME
    with open_llm(prefill_chunk=chunk, enable_prefix_caching=False) as llm:
        assert_equal(llm.generate(PROMPTS[:count], PARAMS[:count]), alone[:count])


def test_copied_prefix_equals_computed(open_llm: Open, alone: list[RequestOutput]) -> None:
    """Guards copies across slots, from running and from cached ones."""
    with open_llm() as llm:
        first = llm.generate(PROMPTS[:SOME], PARAMS[:SOME])
        again = llm.generate(PROMPTS[:SOME], PARAMS[:SOME])
        assert_equal(first, alone[:SOME])
        assert_equal(again, alone[:SOME])
        assert all(output.num_cached_tokens for output in again), "nothing was reused"


def test_a_conversation_equals_its_last_turn_alone(open_llm: Open, solo: LLM) -> None:
    """Guards what was generated: reused as a prompt, it must be as if computed as one."""
    with open_llm() as llm:
        answers = llm.generate(PROMPTS[:2], GREEDY)
        turns = [
            f"{prompt}{answer.outputs[0].text}\nQuestion: And why?\nAnswer:"
            for prompt, answer in zip(PROMPTS, answers, strict=False)
        ]
        second = llm.generate(turns, GREEDY)
        assert all(output.num_cached_tokens for output in second), "nothing was reused"
    assert_equal(second, [solo.generate(turn, GREEDY)[0] for turn in turns])


@pytest.mark.parametrize("saved_limit", ["1GiB", 0], ids=["saved", "recomputed"])
def test_preempted_and_resumed_equals_undisturbed(
    open_llm: Open, alone: list[RequestOutput], saved_limit: object
) -> None:
    """Guards what is saved and what is computed again, where three fit and none of them can grow.

    So it preempts however late the prompts arrive after each other.
    """
    if open_llm.usual["backend"] == "llamacpp":
        pytest.skip("in little memory llama.cpp has one pool, in which nothing is promised")
    blocks = {-(-len(output.prompt_token_ids or ()) // 32) for output in alone}
    assert blocks == {3}, "a prompt has three blocks, and four with its completion"
    tight = {"kv_tokens": 9 * 32, "max_model_len": 128, "enable_prefix_caching": False}
    with open_llm(**tight, saved_limit=saved_limit, watermark=0.0) as llm:
        assert_equal(llm.generate(PROMPTS, PARAMS), alone)
        counters = llm.stats().counters
        kind = "preempted_saved" if saved_limit else "preempted_recomputed"
        assert counters[kind] > 0, counters


def displaced(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[RequestOutput]:
    """The answers to the first requests, of which half displace the others in mid-answer."""
    is_reached, may_go_on = threading.Event(), threading.Event()

    def stop() -> None:
        is_reached.set()
        assert may_go_on.wait(WAIT_S), "nobody let it go on"

    before_batch(llm.engine.backend, MIDDLE, stop)
    asked = list(zip(PROMPTS, PARAMS, strict=True))[:SOME]
    handles = [llm.submit(*each, priority="low") for each in asked[: SOME // 2]]
    assert is_reached.wait(WAIT_S), "nothing runs"
    # The engine waits for this thread, which must not wait until they are accepted.
    monkeypatch.setattr(llm.engine, "submit", llm.engine.send)
    handles += [llm.submit(*each, priority="high") for each in asked[SOME // 2 :]]
    may_go_on.set()
    answers = [handle.result(WAIT_S) for handle in handles]
    assert llm.stats().counters["displaced"] > 0, "nobody was displaced"
    return answers


@pytest.mark.parametrize("is_cached", [True, False], ids=["kept", "recomputed"])
def test_displaced_by_a_higher_class_equals_undisturbed(
    open_llm: Open, alone: list[RequestOutput], is_cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards what goes on in its old memory, and what is computed again token by token: in a span,
    llama.cpp rounds one token in hundreds otherwise."""
    slots = {"max_num_seqs": SOME // 2, "enable_prefix_caching": is_cached}
    with open_llm(policy="priority", **slots) as llm:
        assert_equal(displaced(llm, monkeypatch), alone[:SOME])


def test_fused_attention_answers_alike_beside_others_in_chunks_and_after_a_displacement(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the other kernel of llama.cpp, which rounds all tokens alike."""
    needs("llamacpp")
    fused = Open(model, {**ENGINES["llamacpp"], "flash_attention": "on"})
    asked = list(zip(PROMPTS[:SOME], PARAMS, strict=False))
    with fused(max_num_seqs=1, enable_prefix_caching=False) as llm:
        alone = [llm.generate(*each)[0] for each in asked]
    changed = {"prefill_chunk": 7, "enable_prefix_caching": False, "policy": "priority"}
    with fused(max_num_seqs=SOME // 2, **changed) as llm:
        assert_equal(llm.generate(PROMPTS[:SOME], PARAMS[:SOME]), alone)
        assert_equal(displaced(llm, monkeypatch), alone)


def test_answers_survive_kill_9_of_the_backend_process(
    open_llm: Open, alone: list[RequestOutput]
) -> None:
    """Guards resuming from tokens alone: the process dies in mid-answer, streams go on."""
    with open_llm(backend_process=True) as llm:
        backend = llm.engine.backend
        assert isinstance(backend, ProcessBackend)
        assert backend.pid is not None
        before_batch(backend, MIDDLE, partial(os.kill, backend.pid, signal.SIGKILL))
        assert_equal(llm.generate(PROMPTS[:SOME], PARAMS[:SOME]), alone[:SOME])
        assert llm.stats().backend_failure_count == 1


@pytest.fixture(scope="module")
def by_llamacpp(model: Path) -> list[RequestOutput]:
    """Fifty answers of llama.cpp to a file that both backends read as it is."""
    # Without answers of the other one there is nothing to compare them with.
    needs("openvino")
    needs("llamacpp")
    with Open(model, ENGINES["llamacpp"])(max_model_len=256, max_num_seqs=16) as llm:
        return llm.generate(FIFTY, SHORT)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_fifty_answers_of_openvino_are_those_of_llamacpp(
    model: Path, by_llamacpp: list[RequestOutput], dtype: str
) -> None:
    """Guards the conversion: the same weights say the same, up to the rounding of activations."""
    needs("openvino", dtype=dtype)
    usual: dict[str, object] = {"backend": "openvino", "batch_invariant": "off"}
    with Open(model, usual)(dtype=dtype, max_model_len=256) as llm:
        answers = llm.generate(FIFTY, SHORT)
    equal = [assert_same(*pair) for pair in zip(answers, by_llamacpp, strict=True)]
    assert sum(equal) >= len(FIFTY) // 3, f"{sum(equal)} of {len(FIFTY)}"
