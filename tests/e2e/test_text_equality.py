"""Invariant 4 with a real model: whatever happened to a request, its text stands.

Backends choose kernels by the shape of a batch, and they round differently; so equality is
demanded of the numbers, within a bound: at every position up to the first difference the logprob
of the chosen token is within LOGPROB_BOUND of the run alone. A first difference is accepted only
where both runs saw the same distribution within that bound, and, when greedy, where the two tokens
were as near a tie. Every drawn token is checked against what (seed, position) draws from the
distribution that the run itself reports. The comparisons are themselves tested: they must refuse
another prompt's answer, and another draw.
"""

import math
import os
import platform
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jitney import LLM, Logprob, RequestOutput, SamplingParams
from jitney.backends.process import ProcessBackend
from jitney.config import Settings
from jitney.loading import ready_model
from jitney.sampling.draw import uniform
from tests.backends_for_tests import needs

LOGPROB_BOUND = 1.0
"""SmolLM2 Q8_0 on llama.cpp: another shape of pass moves a logit by up to 0.97 (docs/log.md); the
largest difference seen here in the logprob of a likely token was 0.6, and 0.4 on OpenVINO in
bfloat16."""

LIKELY = -4.0
"""Distributions are compared over tokens with a chance of two in a hundred or more: the logprobs of
less likely ones move further, and decide nothing."""

IS_ARM = platform.machine() in ("aarch64", "arm64")
ROWS_MANY = 8
"""Rows of a pass from which llama.cpp's kernels on ARM are those of a whole prompt."""

LENGTH = 24
WAIT_S = 240.0

SYSTEM = "You are the driver of a small bus that never stops moving, and you answer in a sentence. "
QUESTIONS = (
    "What is the capital of France, and why do people visit it?",
    "Name three fruits that are red.",
    "How does a bicycle stay upright when it moves?",
    "Write one line of a poem about rain.",
    "What is 12 times 12?",
    "Why is the sky blue?",
    "Describe a cat to somebody who has never seen one.",
    "What should I pack for a week in the mountains?",
)
PROMPTS = [f"{SYSTEM * 3}\nQuestion: {question}\nAnswer:" for question in QUESTIONS]
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, logprobs=10, ignore_eos=True)
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
KINDS = pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])


@dataclass(frozen=True, slots=True)
class Open:
    """Opens the embedded model with a small memory, on one backend."""

    usual: dict[str, object]
    is_equal: bool
    """Whether texts are the same to the letter, whatever the batch."""

    def __call__(self, **settings: object) -> LLM:
        small = {"kv_tokens": 6144, "max_model_len": 512, "max_num_seqs": 8}
        return LLM(None, **{**small, **self.usual, **settings})


ENGINES = {
    # Two threads of llama.cpp spin for each other on a busy machine.
    # Its kernels round by the shape of a batch. Under the usual mix that depends on time, and so
    # would the number of texts that part.
    "llamacpp": Open({"backend": "llamacpp", "threads": 1, "mix": "decode-first"}, is_equal=False),
    # In bfloat16 half of the greedy texts part at near ties; float32 shows every other mistake.
    "openvino": Open({"backend": "openvino", "dtype": "float32"}, is_equal=True),
}


@pytest.fixture(scope="module", params=list(ENGINES))
def open_llm(request: pytest.FixtureRequest) -> Open:
    """Each backend in turn."""
    engine = ENGINES[request.param]
    needs(request.param, **{name: each for name, each in engine.usual.items() if name != "backend"})
    return engine


@pytest.fixture(scope="module")
def alone(open_llm: Open) -> Iterator[dict[SamplingParams, list[RequestOutput]]]:
    """Every prompt by itself: one slot, whole prompt in one span, nothing reused."""
    with open_llm(max_num_seqs=1, enable_prefix_caching=False) as llm:
        yield {
            params: [llm.generate(prompt, params)[0] for prompt in PROMPTS]
            for params in (GREEDY, SEEDED)
        }


def tight_memory(outputs: list[RequestOutput]) -> dict[str, object]:
    """A third of the memory that all of them take together."""
    tokens = sum(len(output.prompt_token_ids or ()) + LENGTH for output in outputs)
    return {"kv_tokens": tokens // 3, "max_model_len": 256, "enable_prefix_caching": False}


@pytest.fixture(scope="module")
def alone_in_little(
    open_llm: Open, alone: dict[SamplingParams, list[RequestOutput]]
) -> dict[SamplingParams, list[RequestOutput]]:
    """The same in so little memory that llama.cpp has one pool, which rounds otherwise."""
    with open_llm(**tight_memory(alone[GREEDY]), max_num_seqs=1) as llm:
        return {
            params: [llm.generate(prompt, params)[0] for prompt in PROMPTS]
            for params in (GREEDY, SEEDED)
        }


def assert_same(got: RequestOutput, expected: RequestOutput, *, is_greedy: bool) -> bool:
    """Whether the tokens are equal; raises where they differ by more than rounding can do."""
    ours, theirs = got.outputs[0], expected.outputs[0]
    assert ours.logprobs is not None
    assert theirs.logprobs is not None
    if not is_greedy:
        assert_drawn(got)
    for position, (token, other) in enumerate(zip(ours.token_ids, theirs.token_ids, strict=True)):
        here, there = ours.logprobs[position], theirs.logprobs[position]
        if token != other:
            assert_near(here, there, position)
            if is_greedy:
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


def assert_all_same(
    got: list[RequestOutput],
    expected: list[RequestOutput],
    params: SamplingParams,
    open_llm: Open,
    share: float = 0.5,
) -> None:
    """All within the bound, and all equal to the letter where that is promised.

    Elsewhere this share of the greedy ones is, and at least one; a draw has a chance to fall on the
    other side of an edge at each of its positions.
    """
    is_greedy = params.temperature == 0
    pairs = zip(got, expected, strict=True)
    equal = [assert_same(*pair, is_greedy=is_greedy) for pair in pairs]
    some = max(int(len(equal) * share), 1) if is_greedy else 0
    floor = len(equal) if open_llm.is_equal else some
    assert sum(equal) >= floor, f"{sum(equal)} of {len(equal)}"


@KINDS
def test_the_comparison_refuses_another_answer(
    open_llm: Open, alone: dict[SamplingParams, list[RequestOutput]], params: SamplingParams
) -> None:
    """Guards the guard: a mistake of memory looks like the answer to something else."""
    answers = alone[params]
    with pytest.raises(AssertionError):
        assert_all_same(answers[1:] + answers[:1], answers, params, open_llm)


def test_the_comparison_refuses_another_draw(
    alone: dict[SamplingParams, list[RequestOutput]],
) -> None:
    """Guards the guard: greedy tokens are not what the seed draws."""
    with pytest.raises(AssertionError):
        assert_drawn(alone[GREEDY][0])


@KINDS
def test_batched_equals_alone(
    open_llm: Open, alone: dict[SamplingParams, list[RequestOutput]], params: SamplingParams
) -> None:
    """Guards rows, slots and positions of a mixed batch."""
    with open_llm(enable_prefix_caching=False) as llm:
        assert_all_same(llm.generate(PROMPTS, params), alone[params], params, open_llm)


@KINDS
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_chunked_prompt_equals_whole(
    open_llm: Open,
    alone: dict[SamplingParams, list[RequestOutput]],
    params: SamplingParams,
    chunk: int,
) -> None:
    """Guards spans: a prompt in pieces is the same prompt.

    Every text is within the bound up to its first difference. How many have none depends on the
    kernels, because llama.cpp takes other ones for a few rows than for a whole prompt. On ARM,
    where attention that is not fused has one for eight rows and more, pieces of seven left 5 of 8
    texts equal on a Neoverse N1, 6 with fused attention, and 3 were seen; which attention is used
    was measured on the machine. So a quarter is asked for there, and half elsewhere.
    """
    some = slice(0, 3) if chunk == 1 else slice(None)
    share = 0.25 if IS_ARM and chunk < ROWS_MANY else 0.5
    with open_llm(prefill_chunk=chunk, enable_prefix_caching=False) as llm:
        outputs = llm.generate(PROMPTS[some], params)
        assert_all_same(outputs, alone[params][some], params, open_llm, share)


@KINDS
def test_copied_prefix_equals_computed(
    open_llm: Open, alone: dict[SamplingParams, list[RequestOutput]], params: SamplingParams
) -> None:
    """Guards copies across slots, from running and from cached ones."""
    with open_llm() as llm:
        first = llm.generate(PROMPTS, params)
        again = llm.generate(PROMPTS, params)
        assert_all_same(first, alone[params], params, open_llm)
        assert_all_same(again, alone[params], params, open_llm)
        assert all(output.num_cached_tokens for output in again), "nothing was reused"


@KINDS
@pytest.mark.parametrize("saved_limit", ["1GiB", 0], ids=["saved", "recomputed"])
def test_preempted_and_resumed_equals_undisturbed(
    open_llm: Open,
    alone: dict[SamplingParams, list[RequestOutput]],
    alone_in_little: dict[SamplingParams, list[RequestOutput]],
    params: SamplingParams,
    saved_limit: object,
) -> None:
    """Must show 5 as well: demand of three times the memory; all finish, nothing fails."""
    tight = tight_memory(alone[params])
    with open_llm(**tight, saved_limit=saved_limit, watermark=0.0) as llm:
        assert_all_same(llm.generate(PROMPTS, params), alone_in_little[params], params, open_llm)
        counters = llm.stats().counters
        kind = "preempted_saved" if saved_limit else "preempted_recomputed"
        assert counters[kind] > 0, counters


@KINDS
def test_answers_survive_kill_9_of_the_backend_process(
    open_llm: Open, alone: dict[SamplingParams, list[RequestOutput]], params: SamplingParams
) -> None:
    """Guards resuming from tokens alone: the process dies in mid-answer, streams go on."""
    with open_llm(backend_process=True) as llm:
        backend = llm.engine.backend
        assert isinstance(backend, ProcessBackend)
        handles = [llm.submit(prompt, params) for prompt in PROMPTS]
        for number, _ in enumerate(handles[0]):
            if number == LENGTH // 2:
                assert backend.pid is not None
                os.kill(backend.pid, signal.SIGKILL)
        outputs = [handle.result(WAIT_S) for handle in handles]
        assert llm.stats().backend_failure_count >= 1
        assert_all_same(outputs, alone[params], params, open_llm)


def test_bfloat16_on_openvino_differs_by_rounding_alone() -> None:
    """Guards the default of OpenVINO: every difference is one that rounding explains."""
    needs("openvino", dtype="bfloat16")
    usual = {"backend": "openvino", "dtype": "bfloat16", "max_model_len": 512}
    with LLM(None, **usual, max_num_seqs=1, enable_prefix_caching=False) as llm:
        expected = [llm.generate(prompt, GREEDY)[0] for prompt in PROMPTS]
    with LLM(None, **usual, max_num_seqs=8, prefill_chunk=7) as llm:
        for got, alone in zip(llm.generate(PROMPTS, GREEDY), expected, strict=True):
            assert_same(got, alone, is_greedy=True)


@pytest.fixture(scope="module")
def by_llamacpp() -> tuple[Path, list[RequestOutput]]:
    """A file that both backends read as it is, and fifty answers of llama.cpp."""
    # Without answers of the other one there is nothing to compare them with.
    needs("openvino")
    needs("llamacpp")
    model = ready_model(Settings(backend="llamacpp"))
    with LLM(model, backend="llamacpp", threads=1, max_model_len=256, max_num_seqs=16) as llm:
        return model, llm.generate(FIFTY, SHORT)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_fifty_answers_of_openvino_are_those_of_llamacpp(
    by_llamacpp: tuple[Path, list[RequestOutput]], dtype: str
) -> None:
    """Guards the conversion: the same weights say the same, up to the rounding of activations."""
    needs("openvino", dtype=dtype)
    model, expected = by_llamacpp
    with LLM(model, backend="openvino", dtype=dtype, max_model_len=256, max_num_seqs=16) as llm:
        answers = llm.generate(FIFTY, SHORT)
    pairs = zip(answers, expected, strict=True)
    equal = [assert_same(*pair, is_greedy=True) for pair in pairs]
    assert sum(equal) >= len(FIFTY) // 3, f"{sum(equal)} of {len(FIFTY)}"
