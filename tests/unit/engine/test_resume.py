"""A request that another engine began goes on here from its tokens: none twice, none lost."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jitney.core.events import FinishReason
from jitney.core.params import StructuredOutputsParams
from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Delta
from jitney.engine.engine import Engine
from jitney.engine.mailbox import Mailbox
from jitney.errors import InvalidRequest
from jitney.records import RequestStarted
from tests.unit.engine.worlds import MODEL_LEN_MAX, make_request, make_world

ASKED: list[dict[str, Any]] = [
    {"max_tokens": 24},
    {"max_tokens": 24, "temperature": 1.0},
    {"max_tokens": 24, "temperature": 0.9, "top_p": 0.8, "repetition_penalty": 1.3},
    {"max_tokens": 24, "presence_penalty": 1.0, "frequency_penalty": 0.5, "temperature": 0.7},
    {"max_tokens": 60, "structured_outputs": StructuredOutputsParams(regex="[ab]{9}-[0-9]{7}")},
    {"max_tokens": 24, "logprobs": 2},
]


def run(request: Request) -> tuple[list[Delta], Answer]:
    """Run a request in a world of its own; its deltas one by one, and its answer."""
    world, mailbox, deltas = make_world(), Mailbox(), []
    world.tick.submit(request, mailbox)
    for _ in range(500):
        while isinstance(item := mailbox.fetch(), Delta):
            deltas.append(item)
        if item is not None:
            assert item.error is None, item.error
            assert item.answer is not None
            world.tick.check()
            return deltas, item.answer
        world.tick.run()
    raise AssertionError("it did not end")


@pytest.mark.parametrize("asked", ASKED)
def test_it_goes_on_from_every_token_as_if_nothing_had_happened(asked: dict[str, Any]) -> None:
    """Guards invariants 4 and 5 across engines: draws, penalties and constraints included."""
    request = make_request("a prompt", **asked)
    deltas, whole = run(request)
    (completion,) = whole.completions
    for cut in range(len(deltas)):
        text, resumed = resumed_at(request, deltas, cut)
        assert text == resumed.text == completion.text
        assert resumed.tokens == completion.tokens
        assert resumed.finish_reason is completion.finish_reason
        assert resumed.usage.completion_count == completion.usage.completion_count
        assert resumed.usage.prompt_count == completion.usage.prompt_count


def resumed_at(request: Request, deltas: list[Delta], cut: int) -> tuple[str, Completion]:
    """Go on after so many deltas: the text of both parts, and the completion."""
    tokens = tuple(token for delta in deltas[:cut] for token in delta.tokens)
    after, answer = run(replace(request, resumed=(tokens,)))
    return "".join(each.text for each in (*deltas[:cut], *after)), answer.completions[0]


def test_a_stop_string_across_the_cut_is_found() -> None:
    """Guards invariant 5: what was held back is held back again, and the match is one."""
    _, plain = run(make_request("a prompt", max_tokens=24))
    stop = plain.completions[0].text[6:11]
    request = make_request("a prompt", max_tokens=24, stop=stop)
    deltas, whole = run(request)
    text = whole.completions[0].text
    assert whole.completions[0].stop_reason == stop
    for cut in range(len(deltas)):
        together, resumed = resumed_at(request, deltas, cut)
        assert (together, resumed.stop_reason) == (text, stop)


def test_one_that_lost_only_its_end_ends_at_once() -> None:
    """Guards the last message: the tokens came, and the engine died before it told the end."""
    request = make_request("a prompt", max_tokens=8)
    _, whole = run(request)
    tokens = whole.completions[0].tokens
    assert len(tokens) == 8
    after, answer = run(replace(request, resumed=(tokens,)))
    assert answer.completions[0].finish_reason is FinishReason.LENGTH
    assert [each.tokens for each in after] == [()]
    stopped = make_request("a prompt", max_tokens=24, stop=whole.completions[0].text[2:5])
    _, found = run(stopped)
    _, again = run(replace(stopped, resumed=(found.completions[0].tokens,)))
    assert again.completions[0].finish_reason is FinishReason.STOP
    assert again.completions[0].text == found.completions[0].text


def test_completions_that_ended_are_not_made_again() -> None:
    """Guards `n`: each completion goes on from its own tokens, with its own seed."""
    request = make_request("a prompt", max_tokens=12, n=3, temperature=1.0)
    _, whole = run(request)
    first, second, third = whole.completions
    resumed = (first.tokens[:4], None, ())
    _, answer = run(replace(request, resumed=resumed))
    assert [each.index for each in answer.completions] == [0, 2]
    assert [each.tokens for each in answer.completions] == [first.tokens, third.tokens]
    assert second.tokens not in (first.tokens, third.tokens)


def test_only_tokens_of_its_prompt_count_as_cached() -> None:
    """Guards the hit rate: where its own tokens are still cached, it would find more than its
    prompt."""
    world = make_world()
    request = make_request("a prompt", max_tokens=24)
    world.submit(request, streams=False)
    world.run_dry()
    _, whole = run(request)
    made = whole.completions[0].tokens[:16]
    again = make_request("a prompt", max_tokens=24)
    world.submit(replace(again, resumed=(made,)), streams=False)
    world.run_dry()
    cached = [each.prefix_cache_tokens for each in world.records_of(RequestStarted)]
    assert cached == [0, 8]
    statistics = world.tick.statistics
    assert (statistics.started_prompt_tokens, statistics.cached_tokens) == (16, 8)


@pytest.mark.parametrize("room", [{}, {"max_tokens": 1}])
def test_one_with_more_than_fits_here_ends_with_what_it_has(room: dict[str, Any]) -> None:
    """Guards every other request: the engine that began it had more room."""
    made = tuple(range(100, 130)) * (MODEL_LEN_MAX // 30)
    after, answer = run(replace(make_request("a prompt", **room), resumed=(made,)))
    (completion,) = answer.completions
    assert (completion.tokens, completion.finish_reason) == (made, FinishReason.LENGTH)
    assert [each.tokens for each in after] == [()]


@pytest.mark.parametrize("token", [10_000, -5, 2**70, "x", None, True])
def test_what_is_no_token_is_refused_before_the_engine_sees_it(
    make_engine: Callable[..., Engine], token: Any
) -> None:
    """Guards every other request: a damaged store would end the engine, at each start again."""
    engine = make_engine()
    with pytest.raises(InvalidRequest, match="tokens are 0 to"):
        engine.send(replace(make_request("a prompt"), resumed=((100, token),)))
    whole = engine.submit(make_request("a prompt", max_tokens=2)).result()
    assert whole.completions[0].finish_reason is FinishReason.LENGTH
