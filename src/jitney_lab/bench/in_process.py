"""Runs workloads on an engine in this process, with any settings.

The token times come from the records of the engine, so measuring costs no streaming.

Tests: tests/unit/lab/bench/test_in_process.py and test_strategies.py.
"""

import asyncio
import itertools
import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from jitney.config import Settings
from jitney.core import limits
from jitney.core.backend import Traits
from jitney.core.request import RequestId
from jitney.core.scheduler_settings import GroupAnswers, Strategy
from jitney.engine.engine import DRAIN_S, Engine
from jitney.errors import JitneyError
from jitney.loading.compose import assemble
from jitney.records import Record, RequestStarted, TickRecord
from jitney_lab.bench.drive import drive
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job, Workload, fixed

LENGTH_DEFAULT = 256
QUEUED_MAX = 1_000_000
CLOCK_S = 1e-6
"""The beginning of a tick is computed from its length, so it may be off by this."""

JOINING: dict[str, object] = {
    "strategy": Strategy.CONTINUOUS,
    "max_wait_ms": None,
    "min_batch_size": 1,
    "group_answers": GroupAnswers.TOGETHER,
    "prefill_batch_size": None,
    "decode_batch_size": None,
}
"""All settings that say when requests join, and in what groups. None of the user's is left: they
would make one strategy into another. The user's policy and mix hold for all strategies."""

UNLIMITED: dict[str, object] = {
    "enable_prefix_caching": False,
    "max_num_queued_reqs": QUEUED_MAX,
    "max_num_queued_tokens": limits.TOKENS_MAX,
    "queue_timeout_s": None,
    "request_timeout_s": None,
}
"""What every benchmark of an engine sets itself. A prompt that an earlier run computed would be
found in the cache. Nothing is refused: every request may wait, as long as it takes."""


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What a workload took on an engine, with the ticks that it made."""

    requests: list[RequestTimes]
    ticks: list[TickRecord]
    duration_s: float
    slot_count: int

    @property
    def failures(self) -> list[str]:
        """Why requests failed, one reason for each."""
        return [each.error for each in self.requests if each.error is not None]

    @property
    def mean_batch(self) -> float:
        """Sequences in a forward pass, in the mean."""
        return sum(tick.batch_size for tick in self.ticks) / max(1, len(self.ticks))

    @property
    def wasted(self) -> float:
        """The share of slot-steps that were empty while a request waited for a slot.

        One step of one slot is wasted if no sequence held it and a request waited, both from the
        beginning of the tick to its end; each waiting request makes at most one slot wasted. A
        preempted sequence counts as one that holds its slot.
        """
        waits = [
            (each.sent_at, each.started_at) for each in self.requests if each.started_at is not None
        ]
        holds = [
            (each.started_at, each.token_times[-1])
            for each in self.requests
            if each.started_at is not None and each.token_times
        ]
        pairs = zip(self._covered(waits), self._covered(holds), strict=True)
        wasted = sum(min(waiting, max(0, self.slot_count - held)) for waiting, held in pairs)
        return wasted / max(1, self.slot_count * len(self.ticks))

    def _covered(self, spans: Iterable[tuple[float, float]]) -> list[int]:
        """For each tick, how many of these spans of time it lies in as a whole."""
        begins = [tick.at - tick.tick_ms / 1e3 + CLOCK_S for tick in self.ticks]
        ends = [tick.at for tick in self.ticks]
        changes = [0] * (len(self.ticks) + 1)
        for begin, end in spans:
            first, after = bisect_left(begins, begin), bisect_right(ends, end)
            if first < after:
                changes[first] += 1
                changes[after] -= 1
        return list(itertools.accumulate(changes[:-1]))


class EngineTarget:
    """One engine that takes workloads, one after the other."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._ticks: list[TickRecord] = []
        self._times: dict[RequestId, RequestTimes] = {}
        self._together: int | None = None
        """After so many were sent, no more will come, and those that wait begin."""
        vocabulary = engine.backend.vocabulary
        self._text_tokens = [
            token for token in range(len(vocabulary.pieces)) if token not in vocabulary.control
        ]
        engine.observe(self._note)

    @property
    def traits(self) -> Traits:
        """The numbers of its backend."""
        return self.engine.backend.traits

    def run(
        self, workload: Workload, *, last_job: int | None = None, gathers: bool = False
    ) -> EngineRun:
        """Run a workload to its end. When the job of the number `last_job` has ended, the others
        are cancelled. If it `gathers`, the window of the engine ends when all jobs were sent."""
        self._ticks.clear()
        self._times.clear()
        self._together = len(workload.jobs) if gathers else None
        # The clocks of the engine and of the event loop are this one.
        started_at = time.monotonic()

        async def ask(job: Job) -> RequestTimes:
            times = await self._ask(job, workload.seed)
            if job.number == last_job:
                for request_id in self._times:
                    self.engine.cancel(request_id)
            return times

        asyncio.run(drive(workload, ask))
        duration_s = time.monotonic() - started_at
        ticks = list(self._ticks)
        for tick in ticks:
            for member in tick.members:
                times = self._times.get(member.request_id)
                if times is None:
                    continue
                # It holds its slot for the whole of its first tick. Where another process took the
                # core in between, its start was noted later.
                if times.started_at is not None:
                    times.started_at = min(times.started_at, tick.at - tick.tick_ms / 1e3)
                if member.samples:
                    times.token_times.append(tick.at)
        requests = list(self._times.values())
        return EngineRun(requests, ticks, duration_s, self.engine.settings.max_num_seqs)

    async def _ask(self, job: Job, seed: int) -> RequestTimes:
        request = job.request(job.tokens(seed, self._text_tokens))
        times = RequestTimes(sent_at=time.monotonic(), prompt_count=job.prompt_count)
        self._times[request.id] = times
        try:
            handle = self.engine.send(request, streams=False)
            if len(self._times) == self._together:
                self.engine.stop_gathering()
            answer = await handle.result_async()
            times.completion_count = answer.usage.completion_count
        except JitneyError as error:
            times.error = str(error)
        times.ended_at = time.monotonic()
        return times

    def _note(self, record: Record) -> None:
        if isinstance(record, TickRecord):
            self._ticks.append(record)
        elif isinstance(record, RequestStarted) and record.request_id in self._times:
            self._times[record.request_id].started_at = record.at


def for_bench(settings: Settings, **changes: object) -> Settings:
    """The settings with these changes, `UNLIMITED`, and with room for sequences of a short load.

    With room for the longest sequences of the model, many slots do not fit the memory with cells
    of their own.
    """
    room = {"max_model_len": settings.max_model_len or LENGTH_DEFAULT}
    return replace(settings, **(UNLIMITED | room | changes))  # type: ignore[arg-type]


@contextmanager
def engine_target(settings: Settings) -> Iterator[EngineTarget]:
    """An engine with these settings, warm; it is closed at the end. Raises a SetupError.

    After a failure or Ctrl-C it does not wait for what still runs.
    """
    assembly = assemble(settings)
    drain_s = 0.0
    try:
        target = EngineTarget(assembly.engine)
        count = settings.max_num_seqs
        target.run(fixed(count, 16, 4, seed=0, clients=count), gathers=True)
        yield target
        drain_s = DRAIN_S
    finally:
        assembly.close(drain_s)
