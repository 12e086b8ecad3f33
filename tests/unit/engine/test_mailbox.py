"""The way out: merging, one ending, and waking readers of both kinds."""

import asyncio
import sys
import threading

import pytest

from jitney.core import limits
from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.engine.answer import Delta, Ending
from jitney.engine.mailbox import Awaited, Mailbox
from jitney.engine.track import Track
from jitney.errors import EngineStopped
from jitney.tokenizers.byte_tokenizer import byte_vocabulary

WAIT_S = 100.0


def stopped() -> Ending:
    return Ending(None, EngineStopped("over"))


def test_unread_deltas_are_merged_per_completion() -> None:
    """Guards against a queue that grows with every token nobody reads."""
    mailbox = Mailbox()
    for text, token in (("a", 1), ("b", 2), ("c", 3)):
        mailbox.put(Delta(index=0, text=text, tokens=(token,)))
        mailbox.put(Delta(index=1, text=text.upper(), tokens=(token,)))
    assert mailbox.get(0) == Delta(index=0, text="abc", tokens=(1, 2, 3))
    assert mailbox.get(0) == Delta(index=1, text="ABC", tokens=(1, 2, 3))
    assert mailbox.fetch() is None


def test_a_merged_delta_carries_the_finish_reason_of_its_last_part() -> None:
    """Guards against an end that gets lost when the reader is slow."""
    mailbox = Mailbox()
    mailbox.put(Delta(index=0, text="a"))
    mailbox.put(
        Delta(index=0, text="", finish_reason=FinishReason.STOP, stop_reason="x"),
    )
    assert mailbox.get(0) == Delta(
        index=0, text="a", finish_reason=FinishReason.STOP, stop_reason="x"
    )


def test_the_ending_comes_after_the_unread_deltas_and_stays() -> None:
    """Guards against text that is overtaken by the end, and against a second wait that hangs."""
    mailbox = Mailbox()
    mailbox.put(Delta(index=0, text="a"))
    ending = stopped()
    mailbox.end(ending)
    assert isinstance(mailbox.get(0), Delta)
    assert mailbox.get(0) is ending
    assert mailbox.get(0) is ending


def test_nothing_may_follow_the_ending() -> None:
    """Guards invariants 1 and 5 at the last place where they can be kept."""
    mailbox = Mailbox()
    mailbox.end(stopped())
    with pytest.raises(AssertionError):
        mailbox.put(Delta(index=0, text="late"))
    with pytest.raises(AssertionError):
        mailbox.end(stopped())


def test_an_abandoned_mailbox_ignores_what_a_stuck_engine_says_later() -> None:
    """Guards against two endings when an engine thread comes back after it was given up."""
    mailbox = Mailbox()
    mailbox.abandon(EngineStopped("stuck"))
    mailbox.put(Delta(index=0, text="late"))
    mailbox.end(stopped())
    ending = mailbox.get(0)
    assert isinstance(ending, Ending)
    assert str(ending.error) == "stuck"


@pytest.mark.parametrize("reads", [True, False], ids=["read", "fetch"])
def test_after_the_ending_an_abandoned_track_says_nothing(*, reads: bool) -> None:
    """Guards the end of a stream: a stuck engine that came back added text after the ending."""
    track, mailbox = Track(0, (), byte_vocabulary(), skips_special=True), Mailbox()
    mailbox.follow((track,))
    track.add(ord("a"), 0.0)
    mailbox.abandon(EngineStopped("stuck"))

    def news() -> list[Delta | Ending | None]:
        if reads:
            return list(mailbox.read(lambda: None))
        return [mailbox.fetch(), mailbox.fetch()]

    delta, ending = news()
    assert isinstance(delta, Delta)
    assert delta.text == "a"
    assert isinstance(ending, Ending)
    track.add(ord("b"), 0.0)
    mailbox.follow((track,))
    mailbox.wake()
    assert all(isinstance(each, Ending) for each in news())


def test_a_wait_that_is_not_answered_times_out() -> None:
    """Guards against a reader that hangs for ever."""
    with pytest.raises(TimeoutError):
        Mailbox().get(0.01)


def test_a_mailbox_that_does_not_stream_keeps_the_ending_only() -> None:
    """Guards against text that is kept twice for callers who want only the whole."""
    mailbox = Mailbox(streams=False)
    mailbox.put(Delta(index=0, text="a"))
    assert mailbox.fetch() is None
    mailbox.end(stopped())
    assert isinstance(mailbox.fetch(), Ending)


def test_a_thread_that_sleeps_is_woken_by_a_delta() -> None:
    """Guards against a lost wake-up between threads."""
    mailbox = Mailbox()
    got: list[Delta | Ending] = []
    reader = threading.Thread(target=lambda: got.append(mailbox.get(WAIT_S)), daemon=True)
    reader.start()
    mailbox.put(Delta(index=0, text="a"))
    reader.join(WAIT_S)
    assert got == [Delta(index=0, text="a")]


def test_every_delta_put_from_a_thread_reaches_a_task() -> None:
    """Guards against a lost wake-up on the way into an event loop."""
    mailbox = Mailbox()
    count = 200

    def put_all() -> None:
        mailbox.accept()
        for number in range(count):
            mailbox.put(Delta(index=0, text=f"{number},"))
        mailbox.end(stopped())

    async def read_all() -> str:
        texts = []
        async with asyncio.timeout(WAIT_S):
            await mailbox.wait_async(Awaited.ACCEPTED)
            while isinstance(item := await mailbox.get_async(), Delta):
                texts.append(item.text)
        return "".join(texts)

    async def main() -> str:
        threading.Thread(target=put_all, daemon=True).start()
        return await read_all()

    assert asyncio.run(main()) == "".join(f"{number}," for number in range(count))


def test_a_task_that_gave_up_waiting_can_wait_again() -> None:
    """Guards against a reader that stays registered after its timeout."""
    mailbox = Mailbox()

    async def main() -> Delta | Ending:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await mailbox.get_async()
        mailbox.put(Delta(index=0, text="a"))
        async with asyncio.timeout(WAIT_S):
            return await mailbox.get_async()

    assert asyncio.run(main()) == Delta(index=0, text="a")


def test_a_second_reader_is_refused() -> None:
    """Guards against two tasks that each get half of the text."""
    mailbox = Mailbox()

    async def main() -> None:
        first = asyncio.create_task(mailbox.get_async())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="single reader"):
            await mailbox.get_async()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(main())


def test_a_reader_whose_loop_was_closed_does_not_hurt_the_engine() -> None:
    """Guards against an engine thread that dies of a client's closed event loop."""
    mailbox = Mailbox()
    loop = asyncio.new_event_loop()
    task = loop.create_task(mailbox.get_async())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    mailbox.put(Delta(index=0, text="a"))
    mailbox.end(stopped())
    assert mailbox.ending is not None
    assert not task.done()
    # The task can never run again; say so, or it complains when it is forgotten.
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def heavy(index: int = 0) -> Delta:
    """A token with as many logprobs as there may be."""
    top = tuple((token, -1.0) for token in range(limits.LOGPROBS_MAX))
    return Delta(index=index, text="a", tokens=(1,), logprobs=(TokenLogprob(1, -1.0, top),))


def put_until_neglected(mailbox: Mailbox, s_each: float) -> int:
    """Put until the mailbox is neglected, or long enough; how many it took."""
    for count in range(5000):
        if mailbox.is_read_too_slowly(count * s_each):
            return count
        mailbox.put(heavy(count % 4), count * s_each)
    return 5000


def test_a_reader_who_stops_is_noticed_before_much_is_unread() -> None:
    """Guards memory: logprobs do not become less by merging."""
    count = put_until_neglected(Mailbox(is_bounded=True), limits.UNREAD_S_MAX)
    item = heavy()
    size = sys.getsizeof(item.logprobs[0].top) + sum(
        sys.getsizeof(pair) + sys.getsizeof(pair[0]) + sys.getsizeof(pair[1])
        for pair in item.logprobs[0].top
    )
    assert 0.5 * limits.UNREAD_BYTES_MAX < count * size < 1.5 * limits.UNREAD_BYTES_MAX


def test_a_burst_of_any_size_is_not_neglect() -> None:
    """Guards a reader whose event loop is late for a moment."""
    assert put_until_neglected(Mailbox(is_bounded=True), 0.0) == 5000


def test_a_reader_who_is_slow_and_goes_on_is_not_cut() -> None:
    """Guards the count of what is unread: what was fetched is not."""
    mailbox = Mailbox(is_bounded=True)
    for number in range(2000):
        mailbox.put(heavy(number % 4), float(number))
        assert not mailbox.is_read_too_slowly(float(number))
        if number % 8 == 7:
            while mailbox.fetch() is not None:
                pass


def test_who_reads_late_on_purpose_is_never_cut() -> None:
    """Guards callers in Python who hand in many requests and read them one after the other."""
    assert put_until_neglected(Mailbox(), 1.0) == 5000


def test_a_listener_is_called_once_for_whatever_lies_there() -> None:
    """Guards the engine thread: a reader that is busy is not called for every token."""
    mailbox, called = Mailbox(), list[int]()
    mailbox.listen(lambda: called.append(1))
    mailbox.accept()
    assert called == []
    mailbox.put(Delta(index=0, text="a"))
    mailbox.put(Delta(index=0, text="b"))
    assert called == [1]
    assert mailbox.fetch() == Delta(index=0, text="ab")
    mailbox.listen(lambda: called.append(2))
    assert called == [1]
    mailbox.end(stopped())
    assert called == [1, 2]
    mailbox.listen(lambda: called.append(3))
    assert called == [1, 2, 3], "what lies there already is told at once"


def test_a_mailbox_with_a_listener_has_no_other_reader_of_deltas() -> None:
    """Guards against deltas that are split between two; waiting for the end takes none."""
    mailbox = Mailbox()
    mailbox.listen(lambda: None)
    mailbox.put(Delta(index=0, text="a"))
    with pytest.raises(RuntimeError, match="callbacks"):
        mailbox.get(0)
    mailbox.end(stopped())
    mailbox.wait(Awaited.ENDING, 0)
    assert mailbox.fetch() == Delta(index=0, text="a")
