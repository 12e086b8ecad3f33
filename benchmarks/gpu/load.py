"""What the parts of the GPU benchmark share: an engine, requests for it, and records of passes."""

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from benchmarks.gpu.model import SHAPE, SIZES
from jitney.core.backend import Backend
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Answer
from jitney.engine.engine import Engine
from jitney.engine.handle import Handle
from jitney.records import Record, TickRecord

WAIT_S = 300.0


class Bench:
    """An engine, and the records of its passes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.ticks: list[TickRecord] = []
        self._seed = 0
        engine.observe(self._note)

    def _note(self, record: Record) -> None:
        if isinstance(record, TickRecord):
            self.ticks.append(record)

    def request(self, prompt: int | Sequence[int], answer: int) -> Request:
        """A request of so many tokens of its own, or of these, whose answer is as long as was
        asked."""
        self._seed += 1
        tokens = random_tokens(self._seed, prompt) if isinstance(prompt, int) else tuple(prompt)
        params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
        name = RequestId(f"{id(self)}-{self._seed}")
        return Request(id=name, prompt=tokens, params=params, seed=self._seed)

    def send(self, requests: Sequence[Request]) -> list[Handle[Answer]]:
        """Hand in requests, at once."""
        return [self.engine.send(request, streams=False) for request in requests]

    def ask(self, prompt: int, answer: int) -> Handle[Answer]:
        """Hand in one request."""
        return self.send([self.request(prompt, answer)])[0]

    def finish(self, handles: Sequence[Handle[Answer]]) -> None:
        """Wait for all of them."""
        for handle in handles:
            handle.result(WAIT_S)


def random_tokens(seed: int, count: int) -> tuple[int, ...]:
    """A prompt that shares nothing with others."""
    draw = random.Random(seed)
    return tuple(draw.randrange(100, SHAPE.vocabulary) for _ in range(count))


@contextmanager
def running(backend: Backend, **settings: object) -> Iterator[Bench]:
    """An engine that runs, with its settings."""
    values: dict[str, object] = {
        "model_len_max": SIZES.model_len_max,
        "max_num_seqs": 256,
        "max_num_batched_tokens": SIZES.max_num_batched_tokens,
        "prefill_chunk": SIZES.max_num_batched_tokens,
        "max_num_queued_tokens": 4_000_000,
        "max_num_queued_reqs": 4096,
        **settings,
    }
    engine = Engine(backend, SchedulerSettings(**values))  # type: ignore[arg-type]
    bench = Bench(engine)
    engine.start()
    try:
        yield bench
    finally:
        engine.close(0)


def freeze_garbage() -> None:
    """As the server does: a collection of everything would take as long as a hundred passes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, *gc.get_threshold()[1:])
