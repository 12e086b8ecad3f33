"""One engine behind HTTP, with what every endpoint needs: `Service`. Event loop.

It holds the parts together: who may call (`keys`), how much (`admission`, `billing`), the worker
threads, the bodies, and the calls that are being answered.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from starlette.types import Receive

from jitney.backends.process.client import ProcessBackend
from jitney.config import Key, ServeSettings
from jitney.core.backend import Vocabulary
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.engine import Engine, EngineState
from jitney.engine.request_factory import RequestFactory
from jitney.server import limits
from jitney.server.admission.admission import Admission
from jitney.server.admission.billing import Billing
from jitney.server.admission.keys import KeyRing
from jitney.server.admission.live_calls import LiveCalls
from jitney.server.admission.worker_threads import WorkerThreads
from jitney.server.call import Call
from jitney.server.health import Health, health_of
from jitney.server.http.body_reader import BodyReader
from jitney.server.http.disconnect import unless_left
from jitney.text.chat_template import ChatTemplate

Made = TypeVar("Made")


class Service:
    """One engine behind HTTP. Made once, before the engine has its first request."""

    def __init__(
        self,
        engine: Engine,
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
        self.body_limit = settings.body_limit or body_limit_for(engine.settings.model_len_max)
        self.clock = clock or SystemClock()
        self.keys = KeyRing(keys, self.clock, engine.settings)
        self.admission = Admission(engine, self.body_limit)
        self.billing = Billing(self.model_len_max)
        self.live_calls = LiveCalls()
        self.worker_threads = WorkerThreads(has_several_callers=len(keys) > 1)
        self.bodies = BodyReader(self.body_limit)
        self.response_listeners: list[Callable[[str, int, str | None], None]] = []
        """Called for every HTTP answer with its route's pattern, its status, and a refusal's
        reason."""
        self.created = now_s()
        self.is_stopping = False
        engine.observe(self.live_calls.take)
        engine.observe(self.billing.take)

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokens of the model."""
        return self.engine.backend.vocabulary

    @property
    def model_len_max(self) -> int:
        """The longest sequence, prompt and completion together."""
        return self.engine.settings.model_len_max

    @property
    def model_name(self) -> str:
        """What replies call the model."""
        return self.settings.served_model_name[0]

    def health(self) -> Health:
        """Whether work gets done."""
        return health_of(self.engine, self.settings.stall_timeout)

    def readiness(self) -> Health:
        """Whether the server accepts new work."""
        if self.admission.is_draining or self.engine.state is EngineState.DRAINING:
            return Health("draining", "The server is shutting down.")
        return self.health()

    async def run_in_thread(self, call: Call, make: Callable[[], Made], receive: Receive) -> Made:
        """Call `make` in a worker thread and return its result, unless the client leaves first.

        Raises Draining, ClientLeft, and DeadlineExceeded when it is not done in time.
        """
        left_s = call.left_s(self.clock.now())
        work = self.worker_threads.submit((call.caller.name, call.is_large), make)
        try:
            return await unless_left(work, receive, left_s)
        finally:
            call.is_wanted = False

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
