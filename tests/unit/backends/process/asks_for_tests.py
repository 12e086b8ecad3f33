"""What happens before a question goes to the backend's process."""

from collections.abc import Callable

import pytest

from jitney.backends.process.messages import Channel, Encoded, Message
from jitney.backends.process.worker_process import WorkerProcess


def before_each_ask(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[WorkerProcess, Message], None]
) -> None:
    """Call this with the process and the question, each time."""
    ask = WorkerProcess.ask

    def first_act(
        worker: WorkerProcess,
        channel: Channel,
        question: Message,
        expected: type[Encoded],
        limit_s: float,
    ) -> Message:
        act(worker, question)
        return ask(worker, channel, question, expected, limit_s)

    monkeypatch.setattr(WorkerProcess, "ask", first_act)
