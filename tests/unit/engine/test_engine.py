"""The engine thread: submission, refusal, draining, closing, faults, with real threads."""

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from jitney.core import limits
from jitney.core.events import FinishReason
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Answer
from jitney.engine.engine import Engine, EngineState
from jitney.engine.handle import Handle
from jitney.errors import (
    BackendCrashed,
    ContextLengthExceeded,
    Draining,
    EngineStopped,
    InvalidRequest,
    JitneyError,
)
from jitney.records import BackendLost, Record, TickRecord
from tests.unit.engine.worlds import FaultyBackend, make_request

WAIT_S = 100.0
MakeEngine = Callable[..., Engine]


def test_many_threads_get_their_own_answers(make_engine: MakeEngine) -> None:
    """Guards against answers that go to the wrong caller."""
    engine = make_engine(max_num_seqs=8)

    def ask(number: int) -> str:
        request = make_request(f"number {number}", max_tokens=10)
        return engine.submit(request).result(WAIT_S).completions[0].text

    alone = [ask(number) for number in range(24)]
    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(ask, range(24))) == alone


def test_a_refusal_is_raised_where_the_request_was_submitted(make_engine: MakeEngine) -> None:
    """Guards against refusals that only show when somebody reads."""
    engine = make_engine()
    with pytest.raises(ContextLengthExceeded):
        engine.submit(make_request("x" * 2000))

    async def main() -> None:
        async with asyncio.timeout(WAIT_S):
            await engine.submit_async(make_request("x" * 2000))

    with pytest.raises(ContextLengthExceeded):
        asyncio.run(main())


def test_closing_drains_and_then_refuses(make_engine: MakeEngine, backend: FaultyBackend) -> None:
    """Guards against answers lost at the end, and against a backend that stays open."""
    engine = make_engine()
    handles = [engine.submit(make_request(max_tokens=50)) for _ in range(4)]
    engine.close(WAIT_S)
    assert all(handle.is_done for handle in handles)
    assert all(len(handle.result(0).completions[0].tokens) == 50 for handle in handles)
    assert engine.state is EngineState.STOPPED
    assert backend.closed_count == 1
    with pytest.raises(EngineStopped):
        engine.submit(make_request())
    engine.close()
    assert backend.closed_count == 1


def test_closing_without_draining_cancels_what_lives(
    make_engine: MakeEngine, backend: FaultyBackend
) -> None:
    """Guards against a close that waits for the longest request."""
    engine = make_engine(max_num_seqs=1)
    backend.gate.clear()
    running = engine.send(make_request(max_tokens=900))
    assert backend.entered.wait(WAIT_S)
    waiting = engine.send(make_request(max_tokens=900))
    closer = threading.Thread(target=lambda: engine.close(drain_s=0), daemon=True)
    closer.start()
    backend.gate.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    for handle in (running, waiting):
        _assert_cut_short(handle)


def _assert_cut_short(handle: Handle[Answer]) -> None:
    """Ended by a cancel, or refused because it came with the end."""
    try:
        answer = handle.result(WAIT_S)
    except (Draining, EngineStopped):
        return
    assert answer.completions[0].finish_reason is FinishReason.CANCELLED


def test_a_draining_engine_finishes_what_it_has_and_takes_nothing_new(
    make_engine: MakeEngine,
) -> None:
    """Guards the hand-over from one server to the next."""
    engine = make_engine()
    handle = engine.submit(make_request(max_tokens=50))
    engine.drain()
    with pytest.raises(Draining):
        engine.submit(make_request())
    assert engine.state is EngineState.DRAINING
    assert len(handle.result(WAIT_S).completions[0].tokens) == 50


def test_an_engine_whose_backend_is_beyond_hope_says_so_to_everyone(
    make_engine: MakeEngine, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against callers who wait for a dead engine."""
    monkeypatch.setattr("jitney.engine.in_flight.PAUSE_S", 0.001)
    monkeypatch.setattr("jitney.core.limits.GIVE_UP_S", 0.0)
    backend.execute_faults = [BackendCrashed("killed", 9)]
    backend.reset_faults = [BackendCrashed("no memory")] * limits.GIVE_UP_ATTEMPTS
    engine = make_engine()
    handle = engine.submit(make_request())
    with pytest.raises(EngineStopped, match="no memory"):
        handle.result(WAIT_S)
    with pytest.raises(EngineStopped, match="no memory"):
        engine.submit(make_request())
    assert engine.state is EngineState.STOPPED
    assert isinstance(engine.failure, EngineStopped)


def loss_of(engine: Engine) -> threading.Event:
    """Set when the engine has lost its backend."""
    lost = threading.Event()
    engine.observe(lambda record: lost.set() if isinstance(record, BackendLost) else None)
    return lost


def test_a_backend_lost_while_idle_comes_back_without_a_request(
    make_engine: MakeEngine, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the first request after a quiet night: the backend is looked after before it."""
    monkeypatch.setattr("jitney.engine.loop.IDLE_S_MAX", 0.01)
    engine = make_engine()
    lost = loss_of(engine)
    backend.check_faults = [None, BackendCrashed("killed", 9)]
    assert lost.wait(WAIT_S)
    engine.look().result(WAIT_S)
    assert engine.is_backend_ready
    assert backend.reset_count == 1


def test_a_backend_lost_while_everybody_is_paused_comes_back(
    make_engine: MakeEngine, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards newcomers, who are tokenised by the backend: a paused request runs no batch that
    would find out that it is gone."""
    monkeypatch.setattr("jitney.engine.loop.IDLE_S_MAX", 0.01)
    engine = make_engine()
    lost = loss_of(engine)
    paused = engine.submit(make_request(max_tokens=900))
    paused.pause()
    while engine.snapshot().paused_count == 0:
        engine.look().result(WAIT_S)
    backend.check_faults = [None, BackendCrashed("killed", 9)]
    assert lost.wait(WAIT_S)
    paused.resume()
    assert paused.result(WAIT_S).usage.completion_count == 900


def test_a_second_request_of_one_id_cannot_cancel_the_first(
    make_engine: MakeEngine, backend: FaultyBackend
) -> None:
    """Guards ids that callers choose: whoever was refused gives up its own request only."""
    engine = make_engine()
    first = engine.submit(make_request(id="mine", max_tokens=600))
    backend.gate.clear()
    second = engine.send(make_request(id="mine", max_tokens=600))
    second.cancel()
    second.pause()
    backend.gate.set()
    with pytest.raises(InvalidRequest, match="live already"):
        second.result(WAIT_S)
    assert first.result(WAIT_S).usage.completion_count == 600


def test_a_fault_of_our_own_fails_every_live_request_once(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against silent hangs when the engine thread dies of a bug (invariant 1)."""

    def broken(*arguments: object) -> None:
        raise AssertionError("the ledger is wrong")

    engine = make_engine()
    monkeypatch.setattr("jitney.core.scheduler.Scheduler.apply", broken)
    handles = [engine.send(make_request()) for _ in range(3)]
    for handle in handles:
        with pytest.raises(EngineStopped, match="the ledger is wrong"):
            handle.result(WAIT_S)


def test_a_fault_in_what_counts_costs_nobody_the_end(
    make_engine: MakeEngine, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards invariant 1: the same fault comes again when the end of each request is recorded."""

    def broken(*arguments: object) -> None:
        raise AssertionError("the count is wrong")

    engine = make_engine()
    backend.gate.clear()
    handles = [engine.send(make_request()) for _ in range(3)]
    assert backend.entered.wait(WAIT_S)
    monkeypatch.setattr("jitney.engine.stats.Statistics.take", broken)
    backend.gate.set()
    for handle in handles:
        with pytest.raises(EngineStopped, match="the count is wrong"):
            handle.result(WAIT_S)
    engine.close()
    assert backend.closed_count == 1


def test_closing_while_the_backend_is_stuck_still_tells_everyone(
    make_engine: MakeEngine, backend: FaultyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against readers who hang on native code that never returns."""
    monkeypatch.setattr("jitney.engine.engine.STOP_S", 0.05)
    engine = make_engine()
    backend.gate.clear()
    handle = engine.send(make_request())
    assert backend.entered.wait(WAIT_S)
    late = engine.send(make_request())
    engine.close(drain_s=0)
    for each in (handle, late):
        with pytest.raises(EngineStopped):
            each.result(WAIT_S)


def test_closing_an_engine_that_never_started_tells_who_handed_something_in(
    backend: FaultyBackend,
) -> None:
    """Guards against handles that wait for a thread which never was."""
    engine = Engine(backend, SchedulerSettings(model_len_max=1024))
    handle = engine.send(make_request())
    engine.close()
    _assert_cut_short(handle)
    assert backend.closed_count == 1


def test_a_forgotten_engine_stops_its_thread(backend: FaultyBackend) -> None:
    """Guards against threads and models that pile up in a notebook."""
    engine = Engine(backend, SchedulerSettings(model_len_max=1024))
    engine.start()
    engine.submit(make_request()).result(WAIT_S)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None
    assert backend.closed_count == 1


def test_a_program_that_never_closes_its_engine_ends_all_the_same() -> None:
    """Guards against scripts that hang at exit with requests under way."""
    script = """
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.core.params import SamplingParams
from jitney.core.request import Request
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Answer
from jitney.engine.engine import Engine

backend = FakeBackend(FakeSettings(tick_s=0.01, sleeps=True, eos_period=0))
engine = Engine(backend, SchedulerSettings(model_len_max=4000))
engine.start()
params = SamplingParams(max_tokens=3000)
handle = engine.submit(Request(id="a", prompt=(65,), params=params, seed=1))
next(iter(handle))
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_observer_may_close_the_engine(make_engine: MakeEngine) -> None:
    """Guards against a thread that waits for itself."""
    engine = make_engine()

    def close(record: Record) -> None:
        if isinstance(record, TickRecord):
            engine.close(drain_s=0)

    engine.observe(close)
    _assert_cut_short(engine.send(make_request(max_tokens=900)))
    with pytest.raises(JitneyError):
        engine.submit(make_request())


def test_stats_and_snapshot_are_settled_when_the_answer_is_there(make_engine: MakeEngine) -> None:
    """Guards against figures that lag behind what the caller already knows."""
    engine = make_engine()
    for count in range(1, 6):
        engine.submit(make_request("abcd", max_tokens=3)).result(WAIT_S)
        stats = engine.stats()
        assert (stats.completed_requests, stats.live_requests) == (count, 0)
        assert stats.completion_tokens == 3 * count
        snapshot = engine.snapshot()
        assert (snapshot.running_count, snapshot.waiting_count) == (0, 0)


def test_a_short_prompt_that_comes_again_is_found(make_engine: MakeEngine) -> None:
    """Guards `cached_tokens` of short prompts: all of nine tokens but the last, which is computed.
    Of another tenant's nothing is found, and of another text what it has in common."""
    engine = make_engine()
    prompts = ("nine byte", "nine byte", "nine bytes and some more")
    answers = [engine.submit(make_request(each)).result(WAIT_S) for each in prompts]
    assert [answer.usage.cached_count for answer in answers] == [0, 8, 9]
    assert answers[0].completions[0].text == answers[1].completions[0].text
    other = engine.submit(make_request(prompts[0], scope="other")).result(WAIT_S)
    assert other.usage.cached_count == 0
