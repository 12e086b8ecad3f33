"""`BatchProcessor`: the interface of ZigLlama's chapter on batches, with its names and fields.

A thin layer over `LLM`: it translates the chapter's names to our settings, and the output of each
request to a `BatchResult`. Any thread may call. Results come from the threads of
`jitney.api.callbacks`, never from the engine's. The model brings its own tokenizer.
"""

import math
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, Self

from jitney.api.batch_result import BatchRequest, BatchResult, result_of
from jitney.api.callbacks import check_plain
from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.api.prompts import PromptInput
from jitney.api.submission import PriorityInput
from jitney.config import resolve
from jitney.config.foreign_names import SYNONYMS
from jitney.config.forms import SWITCH, Form, one_of, read_named, whole_number
from jitney.core.params import SamplingParams
from jitney.core.request import RequestId
from jitney.core.scheduler_settings import Strategy
from jitney.engine.clock import SystemClock, epoch_offset_s
from jitney.engine.engine import DRAIN_S
from jitney.engine.stats import Stats
from jitney.errors import ConfigError, EngineStopped, InvalidRequest, JitneyError
from jitney.loading.compose import WAIT_S

GenerationConfig = SamplingParams
"""The seed's name for sampling parameters."""

BatchStats = Stats
"""The engine's statistics have all fields of the seed's, and more."""

LOOK_S = 60.0
"""How long an engine has to say who waits."""


class BatchingStrategy(StrEnum):
    """When requests run together. The values are the names of our strategies."""

    FixedSize = "static"
    DynamicTimeout = "dynamic"
    Adaptive = "adaptive"
    Continuous = "continuous"

    @classmethod
    def _missing_(cls, value: object) -> "BatchingStrategy | None":
        """Also find a strategy by the seed's name, in any case, and with - or _ in it."""
        word = str(value).rpartition(".")[2].casefold().replace("_", "").replace("-", "")
        return next((each for each in cls if word in (each.name.casefold(), each.value)), None)


WAIT_MS: dict[BatchingStrategy, float] = {
    BatchingStrategy.FixedSize: math.inf,
    BatchingStrategy.DynamicTimeout: 100,
    BatchingStrategy.Adaptive: 100,
    BatchingStrategy.Continuous: 0,
}
"""How long a batch waits to fill up by default; 100 is the seed's value."""


class RequestPriority(IntEnum):
    """With `enable_priority` the highest is served first. As numbers over HTTP they need
    `priority_numbers: levels`."""

    Low = 0
    Normal = 1
    High = 2
    Critical = 3


_FORMS: dict[str, Form] = {
    "strategy": one_of(BatchingStrategy, BatchingStrategy, SYNONYMS["strategy"]),
    "max_batch_size": whole_number(1, 4096),
    "min_batch_size": whole_number(1, 4096),
    "max_queue_size": whole_number(1, 1_000_000),
    "num_workers": whole_number(1, 4096),
    "enable_priority": SWITCH,
}
"""How the fields of a `BatchConfig` are read: as settings are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """How requests are put into batches. The defaults are the seed's."""

    strategy: BatchingStrategy | str = BatchingStrategy.DynamicTimeout
    max_batch_size: int = 8
    min_batch_size: int = 1
    """So many requests start before the wait is over; 1 means `max_batch_size`. Above 1 not under
    FixedSize, and under Continuous only with a wait."""
    max_wait_time_ms: float | None = None
    """How long a batch waits to fill up; under Continuous, how long new requests are collected. The
    default is 100, 0 under Continuous, and under FixedSize `math.inf`: until it is full, or until
    `stop`."""
    max_queue_size: int = 1000
    num_workers: int = 1
    enable_priority: bool = False
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, form in _FORMS.items():
            object.__setattr__(self, name, read_named(form, name, getattr(self, name)))
        if self.num_workers != 1:
            raise ConfigError(
                f"num_workers is {self.num_workers}, and a processor has one engine; leave it out, "
                "or let `jitney serve --replicas` run several behind one address."
            )
        strategy = BatchingStrategy(self.strategy)
        if self.max_wait_time_ms is None:
            object.__setattr__(self, "max_wait_time_ms", WAIT_MS[strategy])
        is_fixed = strategy is BatchingStrategy.FixedSize
        if self.min_batch_size > 1 and (is_fixed or not self.max_wait_time_ms):
            raise ConfigError(
                "min_batch_size above 1 has no effect under FixedSize, which waits for "
                "max_batch_size, nor where max_wait_time_ms is 0; choose DynamicTimeout, or give a "
                f"wait ({self.min_batch_size} is given under {strategy.name})."
            )
        if self.max_wait_time_ms == math.inf and not is_fixed:
            raise ConfigError(
                "max_wait_time_ms is for ever (inf) under FixedSize only, not "
                f"{strategy.name}; give a number of milliseconds."
            )

    def settings(self) -> dict[str, object]:
        """The same under the names of our settings, which are checked where they are used."""
        is_endless = self.max_wait_time_ms == math.inf
        return {
            "strategy": str(self.strategy),
            "max_num_seqs": self.max_batch_size,
            "min_batch_size": self.min_batch_size,
            "max_wait_ms": None if is_endless else self.max_wait_time_ms,
            "max_num_queued_reqs": self.max_queue_size,
            "policy": "priority" if self.enable_priority else "fifo",
            "memory_limit": self.memory_limit_bytes,
        }


ResultCallback = Callable[[BatchResult, Any], object]
"""Called with a result and the processor's `user_data` (Any: what the caller gave)."""


class BatchProcessor:
    """Runs prompts in batches and hands their results to one callback.

    `model` and `settings` are arguments of `LLM`: `start` loads the model and `stop` releases it.
    Or `model` is an `LLM`: it stays loaded and keeps its own settings.
    """

    def __init__(
        self,
        model: LLM | str | Path | None = None,
        config: BatchConfig | None = None,
        result_callback: ResultCallback | None = None,
        user_data: object = None,
        **settings: object,
    ) -> None:
        if config is not None and not isinstance(config, BatchConfig):
            raise ConfigError(
                f"config takes a BatchConfig, and got {type(config).__name__}; give no "
                "tokenizer: the model brings its own."
            )
        check_plain("result_callback", result_callback, ("result", "user_data"))
        self.model = model
        self.config = config or (None if isinstance(model, LLM) else BatchConfig())
        """None if a given `LLM` keeps its own settings."""
        self.result_callback = result_callback
        self.user_data = user_data
        self._settings = {**(config or BatchConfig()).settings(), **settings}
        self._llm: LLM | None = None
        self._starting = threading.Lock()
        self._ended = threading.Condition()
        self._open: dict[RequestId, BatchRequest] = {}
        """Requests whose submission has begun, and whose callback has not ended."""
        self._calling = threading.local()
        """The request of a thread's latest callback."""
        self.is_running = False
        if isinstance(model, LLM):
            _check_agrees(model, {**(config.settings() if config else {}), **settings})

    def start(self) -> None:
        """Load the model and accept requests. It may be called again after `stop`."""
        with self._starting:
            if self.is_running:
                return
            model, settings = self.model, self._settings
            self._llm = model if isinstance(model, LLM) else LLM(model, config=None, **settings)
            self.is_running = True

    def submit(
        self,
        prompt: PromptInput,
        config: SamplingParams | None = None,
        priority: PriorityInput = RequestPriority.Normal,
    ) -> RequestId:
        """Submit a prompt. The callback gets its result, perhaps before this method returns.

        Raises QueueFull when the queue is full.
        """
        llm = self._loaded()
        params = config or SamplingParams()
        if not isinstance(params, SamplingParams) or params.n != 1:
            raise InvalidRequest(
                "config takes a SamplingParams with n at 1: a result has one completion.", "config"
            )
        # A result always has the log probability of each token.
        params = replace(params, logprobs=params.logprobs or 0)
        request = BatchRequest(
            id=RequestId(uuid.uuid4().hex), prompt=prompt, config=params, created_at=_now_ms()
        )
        with self._ended:
            if not self.is_running:
                raise EngineStopped("The processor was stopped; call start again.")
            self._open[request.id] = request
        try:
            llm.submit(
                prompt,
                params,
                request_id=request.id,
                priority=priority,
                on_done=self._finish,
                user_data=request,
            )
        except BaseException:
            self._end(request.id)
            raise
        return request.id

    def get_stats(self) -> BatchStats:
        """Statistics since the last start, also after a stop; of a given `LLM`, since its start.

        Unlike the latency of a result, `avg_latency_ms` includes the time in the queue.
        """
        return self._loaded().stats()

    @property
    def stats(self) -> BatchStats:
        """The same as `get_stats()`."""
        return self.get_stats()

    @property
    def queue(self) -> list[BatchRequest]:
        """The requests that wait to run, the next one first; none before `start` or after `stop`.

        The engine says it between two ticks, and lists 256 at most. Raises TimeoutError if it is
        stuck.
        """
        llm = self._llm
        if llm is None or not self.is_running:
            return []
        waiting = llm.engine.look().result(LOOK_S).waiting
        with self._ended:
            return [self._open[row.request_id] for row in waiting if row.request_id in self._open]

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Refuse new requests, and wait at most `drain_s` seconds for the results of the others.

        Those that wait for others to fill a batch start now.
        """
        with self._ended:
            self.is_running = False
        if self._llm is not None and self._llm is not self.model:
            self._llm.close(drain_s)
            return
        # A callback that stops cannot wait for its own end, nor another one for it.
        self._end(getattr(self._calling, "request_id", RequestId("")))
        if self._llm is not None:
            self._llm.engine.stop_gathering()
        with self._ended:
            self._ended.wait_for(lambda: not self._open, min(drain_s, threading.TIMEOUT_MAX))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop(DRAIN_S if error is None else 0.0)

    def _loaded(self) -> LLM:
        if self._llm is None:
            raise EngineStopped("The processor was not started; call start first.")
        return self._llm

    def _finish(
        self, output: RequestOutput | None, error: JitneyError | None, request: BatchRequest
    ) -> object:
        self._calling.request_id = request.id
        try:
            request.mark_completed(output, _now_ms())
            if self.result_callback is None:
                return None
            return self.result_callback(result_of(request, error), self.user_data)
        finally:
            self._end(request.id)

    def _end(self, request_id: RequestId) -> None:
        with self._ended:
            self._open.pop(request_id, None)
            self._ended.notify_all()


def _check_agrees(llm: LLM, settings: dict[str, object]) -> None:
    """Refuse settings that differ from those of a loaded model. None means: left out, or no limit
    of a wait under FixedSize."""
    named = {name: value for name, value in settings.items() if value is not None}
    wanted = resolve(named, None, {}, given_as="argument").given()
    if wanted.get("strategy") is Strategy.STATIC and "max_wait_ms" in settings:
        wanted.setdefault("max_wait_ms", None)
    for name, value in wanted.items():
        loaded = getattr(llm.settings, name)
        wait_s = WAIT_S[llm.settings.strategy]
        if name == "max_wait_ms" and loaded is None and wait_s is not None:
            loaded = wait_s * 1e3
        if loaded != value:
            raise ConfigError(
                f"The LLM was loaded with {name} {loaded!s:.80}, and {value!s:.80} is wanted; load "
                "it with that, or give the model's name and let the processor load it."
            )


def _now_ms() -> float:
    return (SystemClock().now() + epoch_offset_s()) * 1e3
