"""A caller's end of a request, by thread and by event loop."""

import asyncio
from collections.abc import Callable

import pytest

from jitney.core.events import FinishReason
from jitney.core.request import Priority
from jitney.core.rules.pauses import PauseOutcome
from jitney.engine.answer import Delta, Ending
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle
from jitney.engine.mailbox import Mailbox
from jitney.errors import DeadlineExceeded, EngineStopped
from tests.unit.engine.worlds import FaultyBackend, make_request

WAIT_S = 100.0
MakeEngine = Callable[..., Engine]


def test_a_loop_over_a_handle_gives_the_text_of_its_result(make_engine: MakeEngine) -> None:
    """Guards invariant 5 as callers see it, and a result that needs a second request."""
    handle = make_engine().submit(make_request(n=2, temperature=1.0, max_tokens=30))
    texts = ["", ""]
    for delta in handle:
        texts[delta.index] += delta.text
    answer = handle.result(WAIT_S)
    assert texts == [completion.text for completion in answer.completions]
    assert list(handle) == []
    assert handle.shaped(lambda each: len(each.completions)).result(WAIT_S) == 2


def test_leaving_a_with_block_cancels_what_is_unfinished(make_engine: MakeEngine) -> None:
    """Guards against slots kept by readers who left."""
    with make_engine().submit(make_request(max_tokens=900)) as handle:
        next(iter(handle))
    answer = handle.result(WAIT_S)
    assert answer.completions[0].finish_reason is FinishReason.CANCELLED


def test_leaving_an_async_with_block_cancels_what_is_unfinished(make_engine: MakeEngine) -> None:
    """Guards against slots kept by tasks that were cancelled."""
    engine = make_engine()

    async def main() -> FinishReason:
        async with asyncio.timeout(WAIT_S):
            async with await engine.submit_async(make_request(max_tokens=900)) as handle:
                async for _ in handle:
                    break
            return (await handle.result_async()).completions[0].finish_reason

    assert asyncio.run(main()) is FinishReason.CANCELLED


def test_a_result_that_is_not_there_in_time_leaves_the_request_running(
    make_engine: MakeEngine,
) -> None:
    """Guards against a timeout that loses the request, or its deltas."""
    mailbox = Mailbox()
    handle = Handle(make_request(), mailbox, make_engine(), lambda answer: answer)
    with pytest.raises(TimeoutError):
        handle.result(0.01)
    assert not handle.is_done
    mailbox.end(Ending(None, EngineStopped("over")))
    with pytest.raises(EngineStopped, match="over"):
        handle.result(WAIT_S)


def test_a_paused_request_stands_still_until_it_is_resumed(
    make_engine: MakeEngine, backend: FaultyBackend
) -> None:
    """Guards pause and resume across the threads: the text is whole, and others go on."""
    engine = make_engine()
    alone = engine.submit(make_request(max_tokens=600)).result(WAIT_S)
    # It does not end before it is paused.
    backend.gate.clear()
    handle = engine.submit(make_request(max_tokens=600))
    outcome = handle.pause()
    backend.gate.set()
    assert outcome.result(WAIT_S) is PauseOutcome.PAUSED
    other = engine.submit(make_request("other", max_tokens=900)).result(WAIT_S)
    assert other.usage.completion_count == 900
    assert engine.snapshot().paused_count == 1
    assert not handle.is_done
    handle.reprioritise(Priority.HIGH)
    handle.resume()
    answer = handle.result(WAIT_S)
    assert handle.pause().result(WAIT_S) is PauseOutcome.ENDED
    assert answer.completions[0].tokens == alone.completions[0].tokens
    counters = engine.stats().counters
    assert (counters["paused"], counters["resumed"], counters["reprioritised"]) == (1, 1, 1)


def test_closing_lets_the_paused_run_to_their_end(make_engine: MakeEngine) -> None:
    """Guards a drain against somebody who paused and went away."""
    engine = make_engine()
    handle = engine.submit(make_request(max_tokens=600))
    handle.pause()
    engine.close(WAIT_S)
    assert handle.result(WAIT_S).usage.completion_count == 600


def test_what_went_wrong_is_raised_after_the_deltas_and_what_was_made_is_kept(
    make_engine: MakeEngine,
) -> None:
    """Guards against errors that swallow text, and text that hides an error."""
    engine, mailbox = make_engine(), Mailbox()
    answer = engine.submit(make_request()).result(WAIT_S)
    handle = Handle(make_request(), mailbox, engine, lambda each: each)
    mailbox.put(Delta(index=0, text="made"))
    mailbox.end(Ending(answer, DeadlineExceeded("too late")))
    deltas = iter(handle)
    assert next(deltas).text == "made"
    with pytest.raises(DeadlineExceeded):
        next(deltas)
    with pytest.raises(DeadlineExceeded):
        handle.result(WAIT_S)
    assert handle.ending is not None
    assert handle.ending.answer is answer
