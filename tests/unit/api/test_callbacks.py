"""Callbacks of requests: order, exactly one end, and callbacks that raise or block."""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jitney import LLM, Delta, JitneyError, RequestOutput, SamplingParams
from jitney.api import callbacks
from jitney.errors import ContextLengthExceeded, DeadlineExceeded, InvalidRequest

WAIT_S = 60.0
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)


class Heard:
    """What the callbacks of one request, or of several that share it, were called with."""

    def __init__(self, ends_awaited: int = 1) -> None:
        self.calls: list[Delta | RequestOutput | JitneyError | None] = []
        self.user_data: list[object] = []
        self.threads: set[str] = set()
        self.began = threading.Event()
        self.ended = threading.Event()
        self.ended_count = 0
        self._ends_awaited = ends_awaited
        self._lock = threading.Lock()

    def on_delta(self, delta: Delta, user_data: object) -> None:
        with self._lock:
            self.calls.append(delta)
            self.user_data.append(user_data)
            self.threads.add(threading.current_thread().name)
        self.began.set()

    def on_done(
        self, output: RequestOutput | None, error: JitneyError | None, user_data: object
    ) -> None:
        with self._lock:
            self.calls.append(output if error is None else error)
            self.user_data.append(user_data)
            self.threads.add(threading.current_thread().name)
            self.ended_count += 1
            if self.ended_count == self._ends_awaited:
                self.ended.set()

    @property
    def text(self) -> str:
        return "".join(each.text for each in self.calls if isinstance(each, Delta))


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(backend="fake", max_model_len=512, seed=1) as llm:
        yield llm


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What blocking callbacks wait for; open at the end in any case."""
    gate = threading.Event()
    yield gate
    gate.set()


def blocked_by(gate: threading.Event, then: Callable[..., None]) -> Callable[..., None]:
    """A callback that goes on only when the gate is open."""

    def wait(*given: object) -> None:
        assert gate.wait(WAIT_S)
        then(*given)

    return wait


def own_threads() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "jitney-callbacks"]


def test_deltas_come_in_order_and_the_end_comes_once(llm: LLM) -> None:
    """Guards the order of a request's calls, what they are handed, and the engine's thread."""
    heard, mark = Heard(), object()
    handle = llm.submit(
        "the bus", LONG, on_delta=heard.on_delta, on_done=heard.on_done, user_data=mark
    )
    assert heard.ended.wait(WAIT_S)
    output = handle.result(WAIT_S)
    assert heard.text == output.outputs[0].text != ""
    *deltas, end = heard.calls
    assert all(isinstance(each, Delta) for each in deltas)
    assert end == output
    assert set(heard.user_data) == {mark}
    assert heard.threads == {"jitney-callbacks"}
    assert (llm.callback_failed_count, llm.callback_blocked_count) == (0, 0)


def test_one_of_the_two_is_enough(llm: LLM) -> None:
    """Guards callers who want the text only, or the end only."""
    ends, texts = Heard(), Heard()
    first = llm.submit("a", SHORT, on_done=ends.on_done)
    second = llm.submit("a", SHORT, on_delta=texts.on_delta)
    assert ends.ended.wait(WAIT_S)
    assert ends.calls == [first.result(WAIT_S)]
    expected = second.result(WAIT_S).outputs[0].text
    llm.close()
    assert texts.text == expected


def test_the_handle_of_a_request_with_callbacks_is_for_its_result(llm: LLM) -> None:
    """Guards the single reader: deltas taken by a loop would be missing in the callbacks."""
    heard = Heard()
    handle = llm.submit("a", SHORT, on_delta=heard.on_delta, on_done=heard.on_done)
    with pytest.raises(RuntimeError, match="go to its callbacks"):
        next(iter(handle))

    async def iterate() -> None:
        async for _ in handle:
            pass

    with pytest.raises(RuntimeError, match="go to its callbacks"):
        asyncio.run(iterate())
    text = handle.result(WAIT_S).outputs[0].text
    assert heard.ended.wait(WAIT_S)
    assert heard.text == text


def test_a_cancel_ends_with_what_was_made(llm: LLM) -> None:
    """Guards on_done against ends that are no answers."""
    heard = Heard()
    params = SamplingParams(max_tokens=500, ignore_eos=True)
    handle = llm.submit("a", params, on_delta=heard.on_delta, on_done=heard.on_done)
    assert heard.began.wait(WAIT_S)
    handle.cancel()
    assert heard.ended.wait(WAIT_S)
    end = heard.calls[-1]
    assert isinstance(end, RequestOutput)
    assert end.outputs[0].text == heard.text


def test_what_went_wrong_is_told_with_what_was_made(llm: LLM) -> None:
    """Guards on_done against a deadline: it comes, once, with the error and the output."""
    ends: list[tuple[Any, Any]] = []  # Any: an output and an error, looked into below
    ended = threading.Event()

    def on_done(output: RequestOutput | None, error: JitneyError | None, _: object) -> None:
        ends.append((output, error))
        ended.set()

    llm.submit("a", LONG, request_timeout_s=1e-6, on_done=on_done)
    assert ended.wait(WAIT_S)
    ((output, error),) = ends
    assert isinstance(error, DeadlineExceeded)
    assert output.outputs[0].finish_reason == "deadline"


def test_a_refused_request_is_raised_and_not_called_back(llm: LLM) -> None:
    """Guards against an end told twice: by the exception and by the callback."""
    heard = Heard()
    with pytest.raises(ContextLengthExceeded):
        llm.submit("x" * 600, SHORT, on_done=heard.on_done)
    llm.close()
    assert heard.calls == []


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit(3)], ids=repr)
def test_a_callback_that_raises_harms_nobody_and_is_reported(
    llm: LLM, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the request's own later calls, other requests, the engine and the log."""
    heard, others = Heard(), Heard(20)

    def raising(*given: Any) -> None:  # Any: of either callback
        (heard.on_delta if len(given) == 2 else heard.on_done)(*given)
        raise error

    bad = llm.submit("bad", LONG, on_delta=raising, on_done=raising)
    for number in range(20):
        llm.submit(f"good {number}", SHORT, on_done=others.on_done)
    assert others.ended.wait(WAIT_S)
    assert heard.ended.wait(WAIT_S)
    llm.close()
    assert heard.text == bad.result(WAIT_S).outputs[0].text
    assert heard.ended_count == 1
    assert others.ended_count == 20
    assert llm.callback_failed_count == len(heard.calls)
    said = [each.getMessage() for each in caplog.records if each.name == "jitney.api.callbacks"]
    assert said[0] == f"A callback of request {bad.id} failed (1 so far); the request goes on"
    assert len(said) == llm.callback_failed_count.bit_length()


def test_a_callback_that_blocks_stops_nobody_else_and_costs_one_delta(
    llm: LLM, gate: threading.Event
) -> None:
    """Guards other requests' calls, and memory: what is made meanwhile is merged."""
    heard, others = Heard(), Heard(60)
    blocked = llm.submit(
        "bad", LONG, on_delta=blocked_by(gate, heard.on_delta), on_done=heard.on_done
    )
    for number in range(60):
        llm.submit(f"good {number}", SHORT, on_done=others.on_done)
    assert others.ended.wait(WAIT_S)
    output = blocked.result(WAIT_S)
    assert heard.calls == []
    gate.set()
    assert heard.ended.wait(WAIT_S)
    assert heard.text == output.outputs[0].text
    assert len(heard.calls) <= 3, "what was called, the rest in one, and the end"


def test_threads_are_few_and_leave(llm: LLM, gate: threading.Event) -> None:
    """Guards the machine: many requests that do not block need no thread each."""
    heard = Heard(400)
    most: list[int] = []
    for number in range(400):
        llm.submit(f"number {number}", SHORT, on_delta=heard.on_delta, on_done=heard.on_done)
        most.append(len(own_threads()))
    assert heard.ended.wait(WAIT_S)
    assert max(most) <= callbacks.THREADS_MAX
    for thread in own_threads():
        thread.join(WAIT_S)
    assert own_threads() == []
    again = Heard()
    llm.submit("again", SHORT, on_done=again.on_done)
    assert again.ended.wait(WAIT_S), "threads come back when they are needed"


def test_more_blocking_callbacks_than_threads_wait_and_are_reported(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the bound on threads, that everybody is called once all the same, and the report of
    the second time: the first must not silence it for the life of the model."""
    monkeypatch.setattr(callbacks, "THREADS_MAX", 3)
    monkeypatch.setattr(callbacks, "BLOCKED_S", 0.01)
    for _ in range(2):
        caplog.clear()
        open_gate, heard = threading.Event(), Heard(12)
        on_done = blocked_by(open_gate, heard.on_done)
        try:
            handles = [llm.submit(f"n {number}", SHORT, on_done=on_done) for number in range(12)]
            for handle in handles:
                handle.result(WAIT_S)
            assert len(own_threads()) == 3
            # A report that came before the third call does not know that all block.
            while "3 callbacks run at once, which is the limit" not in caplog.text:
                assert not open_gate.wait(0.001)
        finally:
            open_gate.set()
        assert heard.ended.wait(WAIT_S)
        for thread in own_threads():
            thread.join(WAIT_S)
        assert heard.ended_count == 12


def test_a_thread_that_cannot_start_is_reported_and_tried_again(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards a machine without a free thread: the request runs, and the next brings its calls."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("jitney-callback"):
            raise RuntimeError("can't start new thread")
        start(thread)

    heard = Heard(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        handle = llm.submit("first", SHORT, on_done=heard.on_done)
        assert handle.result(WAIT_S).finished
    assert (
        caplog.messages
        == ["The system has no further thread for callbacks: can't start new thread"] * 2
    )
    assert heard.ended_count == 0
    llm.submit("second", SHORT, on_done=heard.on_done)
    assert heard.ended.wait(WAIT_S)
    assert heard.ended_count == 2


def test_every_call_that_does_not_return_is_reported(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards whoever looks for the reason of a silence, also where an earlier call blocked.

    The first call ends when one report is there, and the last one when there are two; where the
    machine is slow, calls between them may be reported as well.
    """
    monkeypatch.setattr(callbacks, "BLOCKED_S", 0.01)
    heard = Heard()

    def wait_for_reports(count: int) -> None:
        for _turn in range(int(WAIT_S * 1000)):
            if len(caplog.messages) >= count:
                return
            threading.Event().wait(0.001)

    def on_done(*given: Any) -> None:  # Any: as callbacks are given them
        wait_for_reports(2)
        heard.on_done(*given)

    handle = llm.submit("a", LONG, on_delta=lambda *_: wait_for_reports(1), on_done=on_done)
    assert heard.ended.wait(3 * WAIT_S)
    said = f"A callback of request {handle.id} has not returned for 0.01 s; others go on"
    assert set(caplog.messages) == {said}
    assert llm.callback_blocked_count >= 2


def test_a_close_waits_for_callbacks_but_not_for_ever(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the end of a program against a callback that never returns."""
    monkeypatch.setattr(callbacks, "CLOSE_S", 0.05)
    heard, others = Heard(), Heard(20)
    with LLM(backend="fake") as llm:
        blocked = llm.submit("bad", SHORT, on_done=blocked_by(gate, heard.on_done))
        for number in range(20):
            llm.submit(f"good {number}", SHORT, on_done=others.on_done)
        assert others.ended.wait(WAIT_S)
    assert f"these callbacks did not return: {blocked.id}" in caplog.text
    assert "1 requests had not had their last call" in caplog.text
    gate.set()
    assert heard.ended.wait(WAIT_S), "it is called all the same when the way is free"
    assert (heard.ended_count, others.ended_count) == (1, 20)


def test_a_callback_may_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against a callback that waits for its own return."""
    monkeypatch.setattr(callbacks, "CLOSE_S", 10 * WAIT_S)
    closed = threading.Event()
    llm = LLM(backend="fake")

    def on_done(*_: object) -> None:
        llm.close()
        closed.set()

    llm.submit("a", SHORT, on_done=on_done)
    assert closed.wait(WAIT_S)


def test_a_callback_may_submit(llm: LLM) -> None:
    """Guards chains of requests: the next one is handed in when the last one ended."""
    heard = Heard(5)

    def on_done(output: RequestOutput | None, error: JitneyError | None, left: int) -> None:
        heard.on_done(output, error, left)
        if left:
            llm.submit("a", SHORT, on_done=on_done, user_data=left - 1)

    llm.submit("a", SHORT, on_done=on_done, user_data=4)
    assert heard.ended.wait(WAIT_S)
    assert heard.user_data == [4, 3, 2, 1, 0]


def test_callbacks_go_with_an_event_loop(llm: LLM) -> None:
    """Guards `submit_async`: the same options, called from the same threads."""
    heard = Heard()

    async def main() -> RequestOutput:
        async with asyncio.timeout(WAIT_S):
            handle = await llm.submit_async(
                "a", SHORT, on_delta=heard.on_delta, on_done=heard.on_done, request_id="mine"
            )
            return await handle.result_async()

    output = asyncio.run(main())
    assert heard.ended.wait(WAIT_S)
    assert heard.calls[-1] == output
    assert output.request_id == "mine"
    assert heard.threads == {"jitney-callbacks"}


async def coroutine(*_: object) -> None:
    """Never awaited by anyone."""


class Awaited:
    """Looks like a plain object, and its call is a coroutine."""

    async def __call__(self, *_: object) -> None:
        """Never awaited by anyone."""


@pytest.mark.filterwarnings("error")
def test_a_coroutine_that_is_returned_is_closed_counted_and_said(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards against a callback that never ran and that nobody hears of."""
    ended = llm.submit("a", SHORT, on_done=lambda *given: coroutine(*given))
    ended.result(WAIT_S)
    llm.close()
    assert llm.callback_failed_count == 1
    assert "returned a coroutine, which is not awaited here" in caplog.text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on_done": 3}, "on_done takes a plain function"),
        ({"on_delta": coroutine}, "use `async for` over the handle"),
        ({"on_delta": Awaited()}, "use `async for` over the handle"),
        ({"user_data": 3}, "user_data goes to on_delta and on_done"),
    ],
)
def test_what_cannot_be_called_is_refused(llm: LLM, options: Any, said: str) -> None:
    """Guards against a callback that would never come."""
    with pytest.raises(InvalidRequest, match=said):
        llm.submit("a", SHORT, **options)


def test_switching_threads_all_the_time_changes_nothing(llm: LLM) -> None:
    """Guards the order of calls against every interleaving of threads."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        heard = [Heard() for _ in range(40)]
        handles = [
            llm.submit(f"n {number}", LONG, on_delta=each.on_delta, on_done=each.on_done)
            for number, each in enumerate(heard)
        ]
        assert all(each.ended.wait(WAIT_S) for each in heard)
    finally:
        sys.setswitchinterval(usual)
    assert [each.text for each in heard] == [
        handle.result(WAIT_S).outputs[0].text for handle in handles
    ]
    assert all(isinstance(each.calls[-1], RequestOutput) for each in heard)
