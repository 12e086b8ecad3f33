"""Families that only llama.cpp runs, through the engine: states, sliding windows, experts.

Whatever was batched, copied, preempted or lost with a killed process, each answer says at each
position what llama.cpp says alone of the same tokens. Where equal texts are promised, each is that
of the request alone, to the last bit. Models that keep a state promise none (decision 33).
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jitney.backends.process.client import ProcessBackend
from jitney.engine.engine import Engine
from tests.backends_for_tests import before_batch, skip_reason

if reason := skip_reason("llamacpp", threads=1):
    pytest.skip(reason, allow_module_level=True)

from tests.alone_for_tests import (
    Prompts,
    Said,
    ask,
    gap_to_alone,
    keeps_state,
    served,
)
from tests.families_for_tests import BY_LLAMACPP, ORIGINAL, family_model

BOUND = 0.03
"""Largest difference of a likely token's logprob to llama.cpp called alone; 0.011 was seen."""
LENGTH = 8
MIDDLE = 3
"""The batch before which the process dies: every answer is under way, and none is over."""
SOME = 4


def texts(*lengths: int) -> list[tuple[int, ...]]:
    """Prompts without the first four tokens, which are special."""
    random = np.random.default_rng(len(lengths))
    return [tuple(map(int, random.integers(4, 268, length))) for length in lengths]


PROMPTS = texts(*range(8, 8 + 16 * 9, 9))
assert max(map(len, PROMPTS)) > 2 * ORIGINAL, "a window is to be outgrown"


@pytest.fixture(scope="module", params=list(BY_LLAMACPP))
def model(request: pytest.FixtureRequest) -> Path:
    """Each family in turn."""
    return family_model(request.param)


@pytest.fixture(scope="module")
def alone(model: Path) -> list[Said]:
    """Every prompt by itself: whole, in one slot, nothing reused."""
    return by_itself(model, PROMPTS)


def by_itself(model: Path, prompts: Prompts) -> list[Said]:
    """The last answer is enough where equal texts are not promised."""
    if keeps_state(model):
        prompts = prompts[-1:]
    with served(model, 1, enable_prefix_caching=False) as engine:
        return [ask(engine, [prompt], LENGTH)[0] for prompt in prompts]


def check(model: Path, engine: Engine, found: Sequence[Said], alone: Sequence[Said]) -> None:
    """What llama.cpp says alone, and equal to the last bit where that is promised."""
    assert max(gap_to_alone(model, said) for said in found) <= BOUND
    if engine.backend.traits.batch_invariant:
        assert [said.content for said in found] == [said.content for said in alone]


def test_the_comparison_sees_a_token_far_back(model: Path, alone: list[Said]) -> None:
    """Guards the guard: a state or a window that lost one token is refused."""
    said = alone[-1]
    changed = (said.prompt[1], *said.prompt[1:])
    assert gap_to_alone(model, replace(said, prompt=changed)) > BOUND


def test_sixteen_together_and_their_next_turns_say_what_llamacpp_says_alone(
    model: Path, alone: list[Said]
) -> None:
    """Guards rows and slots of a mixed batch, and what is reused: half of the next turns go on from
    an answer, and each has a neighbour that goes on from the same prompt otherwise."""
    with served(model) as engine:
        first = ask(engine, PROMPTS, LENGTH)
        check(model, engine, first, alone)
        turns = [(*said.prompt, *said.tokens, *PROMPTS[0]) for said in first[-SOME:]]
        turns += [(*said.prompt, *PROMPTS[1]) for said in first[-SOME:]]
        second = ask(engine, turns, LENGTH)
        check(model, engine, second, by_itself(model, turns))
    assert sum(said.cached_count > 0 for said in second) >= SOME, "nothing was reused"


@pytest.mark.parametrize("saved_limit", [2**30, 0], ids=["saved", "recomputed"])
def test_preempted_and_resumed_says_what_llamacpp_says_alone(
    model: Path, alone: list[Said], saved_limit: int
) -> None:
    """Guards what is saved and what is computed again, where four prompts fit and cannot grow."""
    asked = slice(SOME, 2 * SOME)
    kv_tokens = sum(map(len, PROMPTS[asked])) + SOME
    # Any: each of its own kind.
    limits: dict[str, Any] = {
        "saved_limit": saved_limit,
        "watermark": 0.0,
        "enable_prefix_caching": False,
        "model_len_max": kv_tokens,
    }
    with served(model, SOME, kv_tokens=kv_tokens, **limits) as engine:
        check(model, engine, ask(engine, PROMPTS[asked], LENGTH), alone[asked])
        counters = engine.stats().counters
        is_saved = saved_limit and engine.backend.traits.can_save
    assert counters["preempted_saved" if is_saved else "preempted_recomputed"] > 0, counters


def test_answers_survive_kill_9_of_the_backend_process(model: Path, alone: list[Said]) -> None:
    """Guards resuming from tokens alone: the process dies in mid-answer, and answers go on."""
    with served(model, SOME, is_apart=True) as engine:
        backend = engine.backend
        assert isinstance(backend, ProcessBackend)
        assert backend.pid is not None
        before_batch(backend, MIDDLE, partial(os.kill, backend.pid, signal.SIGKILL))
        check(model, engine, ask(engine, PROMPTS[-SOME:], LENGTH), alone[-SOME:])
        assert engine.stats().backend_failure_count == 1
