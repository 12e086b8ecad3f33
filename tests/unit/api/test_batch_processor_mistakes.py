"""`BatchProcessor` in the hands of those who misspell, stop from within, or give what is no
callback."""

import threading

import pytest

from jitney import LLM, BatchConfig, BatchProcessor, BatchResult, SamplingParams
from jitney.api import callbacks
from jitney.errors import InvalidRequest

WAIT_S = 60.0
GREEDY = SamplingParams(temperature=0.0, max_tokens=6)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_callbacks_that_stop_wait_neither_for_themselves_nor_for_each_other(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards code that stops when it has enough: two results reach that point at once."""
    monkeypatch.setattr(callbacks, "CLOSE_S", 10 * WAIT_S)
    met = threading.Barrier(2, timeout=WAIT_S)
    ended: list[str] = []

    def stop(result: BatchResult, user_data: object) -> None:
        met.wait()
        stopping.stop(10 * WAIT_S)
        ended.append(result.request_id)

    with LLM(backend="fake") as llm:
        if is_loaded:
            stopping = BatchProcessor(llm, None, stop)
        else:
            stopping = BatchProcessor(None, BatchConfig(), stop, backend="fake")
        stopping.start()
        ids = [stopping.submit(name, GREEDY) for name in "ab"]
        deadline = threading.Event()
        while len(ended) < 2:
            assert not deadline.wait(0.01)
        assert sorted(ended) == sorted(ids)


def test_a_callback_that_cannot_be_called_by_a_thread_is_refused() -> None:
    """Guards results: a coroutine would never be awaited, and all of them lost."""

    async def later(result: BatchResult, user_data: object) -> None: ...

    with pytest.raises(InvalidRequest, match="result_callback takes a plain function"):
        BatchProcessor(None, BatchConfig(), later, backend="fake")
