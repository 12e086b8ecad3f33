"""An engine for tests of `bench stalls`: what happens when does not depend on the machine."""

import asyncio

import pytest

from jitney_lab.bench import in_process, stalls
from jitney_lab.bench.in_process import EngineTarget
from jitney_lab.bench.stalls import STREAM_COUNT
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import Job

WAIT_S = 60.0
STREAM_TOKENS = 200_000
"""So many take longer than any pause of the machine. Streams are cancelled long before."""

KV_TOKENS = (STREAM_COUNT + 1) * (STREAM_TOKENS + 100)


class WaitingTarget(EngineTarget):
    """Sends a job that comes later when all streams are generating, however long that takes."""

    async def _ask(self, job: Job, seed: int) -> RequestTimes:
        async with asyncio.timeout(WAIT_S):
            while job.at_s and not self._all_generate():  # noqa: ASYNC110, records have no event
                await asyncio.sleep(0.001)
        return await super()._ask(job, seed)

    def _all_generate(self) -> bool:
        return any(
            tick.batch_size == STREAM_COUNT and not tick.prefill_tokens for tick in self._ticks
        )


def outlast_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the streams of `bench stalls` outlast the prompt, and the prompt come after them."""
    monkeypatch.setattr(stalls, "STREAM_TOKENS", STREAM_TOKENS)
    monkeypatch.setattr(in_process, "EngineTarget", WaitingTarget)
