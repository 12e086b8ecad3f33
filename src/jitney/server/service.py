"""One engine behind HTTP, with what every endpoint needs: `Service`. Event loop.

It holds the parts together: who may call (`keys`), how much (`admission`), the worker
threads, the bodies, and the calls that are being answered.
"""

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from time import thread_time
from typing import Protocol

from jitney.backends.process.client import ProcessBackend
from jitney.config import Key, ServeSettings
from jitney.core.backend import Vocabulary
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.engine import EngineState
from jitney.engine.request_factory import FreshIds, RequestFactory
from jitney.engine.served_engine import ServedEngine
from jitney.server import limits
from jitney.server.admission.calls import CallPlaces, LiveCalls
from jitney.server.admission.keys import KeyRing
from jitney.server.admission.text_steps import TextSteps
from jitney.server.admission.worker_threads import SharedWork, WorkerThreads
from jitney.server.formats.answer_families import ModelFormat, model_format
from jitney.server.http.body_reader import BodyReader
from jitney.text.chat_template import ChatTemplate

_log = logging.getLogger("jitney.server")


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the server can do its work: a status and, unless it is ok, the reason."""

    status: str
    reason: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the server can do its work."""
        return self.status == "ok"


class Loaded(Protocol):
    """What a server is made of: one engine, or a fleet of them."""

    @property
    def engine(self) -> ServedEngine:
        """What answers requests."""

    @property
    def request_factory(self) -> RequestFactory:
        """Makes requests."""

    @property
    def template(self) -> ChatTemplate | None:
        """The model's chat template, if it has one."""

    @property
    def model_name(self) -> str:
        """The name for clients."""


class LoopCalls:
    """Calls from other threads to one event loop, in their order and in rounds. Made on the loop.

    Rounds take a fifth of the loop's time (`limits.ROUND_REST_PART`), so that new requests get in.
    What comes while they rest waits for the next one, and the news of a stream become one piece: to
    write it takes longer than to make a token.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: deque[Callable[[], None]] = deque()
        self._is_due = False
        self._rests_until = 0.0

    def call(self, function: Callable[[], None]) -> None:
        """Any thread: have the function called on the loop. To wake a loop takes a system call, and
        the engine has news for all streams at once."""
        self._calls.append(function)
        if not self._is_due:
            self._is_due = True
            # A closed loop calls nobody any more.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        rest_s = self._rests_until - self._loop.time()
        if rest_s > limits.ROUND_REST_S_MIN:
            self._loop.call_later(rest_s, self._run)
        else:
            self._run()

    def _run(self) -> None:
        # First, so that what is added from now on wakes the loop again.
        self._is_due = False
        begun_s = thread_time()
        for _ in range(len(self._calls)):
            try:
                self._calls.popleft()()
            except Exception:
                # The others are of other callers.
                _log.exception("A call to the event loop failed")
        # Of the processor's time: a wait for the processor is no work.
        rest_s = limits.ROUND_REST_PART * (thread_time() - begun_s)
        self._rests_until = self._loop.time() + min(rest_s, limits.ROUND_REST_S_MAX)


class Service:
    """One engine behind HTTP. Made once, before the engine has its first request."""

    def __init__(
        self,
        engine: ServedEngine,
        request_factory: RequestFactory,
        template: ChatTemplate | None,
        settings: ServeSettings,
        keys: tuple[Key, ...] = (),
        clock: Clock | None = None,
    ) -> None:
        self.engine = engine
        self.request_factory = request_factory
        self.template = template
        assert settings.served_model_name, "A model has a name"
        self.settings = settings
        self.model_name = settings.served_model_name[0]
        """What replies call the model."""
        self.own_name = ""
        """What its files are called, if that is known."""
        self.model_len_max = engine.settings.model_len_max
        """The longest sequence, prompt and completion together."""
        self.body_limit = settings.body_limit or body_limit_for(self.model_len_max)
        self.values_max = max(limits.VALUES_MAX, self.body_limit // limits.VALUE_BYTES_USUAL)
        """Strings and numbers of one body."""
        self.clock = clock or SystemClock()
        self.keys = KeyRing(keys, self.clock, engine.settings)
        self.admission = CallPlaces(engine, self.body_limit)
        self.live_calls = LiveCalls(self.model_len_max)
        self.worker_threads = WorkerThreads(has_several_callers=len(keys) > 1)
        self.long_replies = WorkerThreads(1, has_several_callers=False, rests=True)
        """Long work with JSON, in slices: all threads of Python wait for each."""
        self.text_steps = TextSteps(template, request_factory)
        self.shares_work = not request_factory.is_remote
        self.shared_work = SharedWork(self.text_steps.run_together)
        self.bodies = BodyReader(self.body_limit)
        self.fresh_ids = FreshIds()
        self.response_listeners: list[Callable[[str, int, str | None], None]] = []
        """Called for every HTTP response with its route's pattern, its status, and a refusal's
        reason."""
        self.created = now_s()
        self.is_stopping = False
        engine.observe(self.live_calls.take)

    @functools.cached_property
    def loop_calls(self) -> LoopCalls:
        """Calls from other threads to the event loop. First asked for on that loop."""
        return LoopCalls()

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""
        return self.engine.backend.vocabulary

    @functools.cached_property
    def own_models(self) -> tuple[str, ...]:
        """The served names, each with a digest of the model: what one began, another that has its
        name does not go on with. Its own name, its tokens and its template tell models apart."""
        vocabulary = self.vocabulary
        facts = blake2b(repr((self.own_name, vocabulary.chat_template)).encode(), digest_size=8)
        facts.update(b"\0".join(vocabulary.pieces))
        return tuple(f"{each} {facts.hexdigest()}" for each in self.settings.served_model_name)

    def serves(self, owner: str, model: str) -> bool:
        """Whether what this key began with this model goes on here. The model is one of
        `own_models`; or only a name, in `jitney batch run` and from versions before."""
        names = self.settings.served_model_name
        return self.keys.named(owner) is not None and model in (*self.own_models, *names)

    @functools.cached_property
    def format(self) -> ModelFormat | None:
        """How the model writes its answers; None without a chat template. Any thread."""
        template = self.template
        if template is None:
            return None
        return model_format(template.source, self.vocabulary, knows_tools=template.knows_tools)

    def health(self) -> Health:
        """Whether work gets done. A server that drains is healthy. Any thread."""
        engine = self.engine
        if engine.state is EngineState.STOPPED:
            return Health("stopped", "The engine has stopped; its log says why.")
        if not engine.is_backend_ready:
            lost = "The backend was lost and is being started again."
            nobody = "No replica is ready; calls wait for the next one."
            return Health("restarting", lost if engine.replica_views() is None else nobody)
        stalled_s = engine.stalled_s
        if stalled_s > limits.STALL_S_MAX:
            return Health(
                "stalled",
                f"No forward pass has ended for {stalled_s:.0f} s, "
                f"and {engine.stats().live_requests} requests wait for one.",
            )
        return Health("ok")

    def readiness(self) -> Health:
        """Whether the server accepts new work."""
        if self.admission.is_draining or self.engine.state is EngineState.DRAINING:
            return Health("draining", "The server is shutting down.")
        return self.health()

    def drain(self) -> None:
        """Refuse new work, also bodies on their way in. Accepted work goes on."""
        self.admission.is_draining = True
        self.bodies.drain()
        # No new request can fill a group now, and no call can resume a paused one.
        self.engine.end_waits()

    async def stop(self) -> None:
        """End the engine. Callers with running requests get an error."""
        self.admission.is_draining = self.is_stopping = True
        await asyncio.to_thread(self.engine.close, 0.0)
        self.worker_threads.close()
        self.long_replies.close()
        self.shared_work.close()
        self.bodies.close()

    def kill_backend(self) -> None:
        """End the backend's process, if it has one, without waiting for its batch."""
        if isinstance(self.engine.backend, ProcessBackend):
            self.engine.backend.close()


def body_limit_for(model_len_max: int) -> int:
    """The largest body that is useful for a model of this length."""
    return max(limits.BODY_BYTES_MIN, limits.BODY_BYTES_PER_TOKEN * model_len_max)


def now_s() -> int:
    """The current time as in OpenAI's field `created`."""
    return int(datetime.now(UTC).timestamp())
