"""Shows the detail of a replica's engine to the ingresses that asked for it: `Showing`.

The engine is asked once at a time, however many ask. A stuck one does not answer, and then nothing
is shown. The event loop of the replica.

Tests: tests/unit/cluster/test_overview.py.
"""

import asyncio
from concurrent.futures import Future
from dataclasses import replace

from jitney.core.snapshot import Detail
from jitney.engine.engine import Engine
from jitney_cluster.back_channel import ReplicaLine
from jitney_cluster.replica_messages import ReplicaDetail

TAIL_CHARACTERS_MAX = 1024
SLOTS_MAX = 512
STRETCHES_MAX = 2048
"""What is shown of one replica: at most half a megabyte."""


class Showing:
    """Answers those who ask. Made on the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._lines: set[ReplicaLine] = set()
        self._looking: Future[Detail] | None = None

    def ask(self, line: ReplicaLine, characters_max: int) -> None:
        """The ingress on this line wants the detail."""
        self._lines.add(line)
        if self._looking is None:
            self._looking = self._engine.look(min(characters_max, TAIL_CHARACTERS_MAX))
            self._looking.add_done_callback(
                lambda looked: self._loop.call_soon_threadsafe(self._show, looked)
            )

    def _show(self, looked: Future[Detail]) -> None:
        lines, self._lines, self._looking = self._lines, set(), None
        shown = ReplicaDetail(bounded(looked.result()), self._engine.snapshot())
        for line in lines:
            line.send([shown])


def bounded(detail: Detail) -> Detail:
    """As much of the detail as is shown: the first slots, and the ends of their texts."""
    slots = detail.slots[:SLOTS_MAX]
    names = {each.request_id for each in slots}
    return replace(
        detail,
        slots=slots,
        stretches=detail.stretches[:STRETCHES_MAX],
        tails={name: texts for name, texts in detail.tails.items() if name in names},
    )
