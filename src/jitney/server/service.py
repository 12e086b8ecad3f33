"""What every endpoint needs: the engine, its door, the settings, and who is being served.

Endpoints call it on the event loop; `_take` and `_charge` are called on the engine thread for
every record, so they only write a few fields. Others who want to watch attach with
`engine.observe`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

from starlette.types import Receive

from jitney.backends.process.client import ProcessBackend
from jitney.config import Key, ServeSettings
from jitney.core.backend import Vocabulary
from jitney.core.request import Request, RequestId
from jitney.engine.clock import Clock, SystemClock
from jitney.engine.engine import Engine, EngineState
from jitney.engine.records import (
    Record,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestRefused,
    RequestStarted,
)
from jitney.engine.request_factory import RequestFactory
from jitney.errors import DeadlineExceeded, Draining, InvalidRequest, QueueFull
from jitney.server import limits
from jitney.server.admission.keys import Caller, KeyRing
from jitney.server.admission.live_calls import LiveCalls
from jitney.server.admission.workers import Door, Stay
from jitney.server.openai.error_object import ClientLeft, Refusal, retry_headers
from jitney.server.openai.read_body import Intake, wait_leaving
from jitney.text.chat_template import ChatTemplate

_log = logging.getLogger("jitney.server")

Made = TypeVar("Made")


@dataclass(slots=True)
class Ticket:
    """What is known of one request of the engine, while its HTTP request lives.

    Written on the engine thread: how many waited when it was accepted, and how long it waited
    for its first slot.
    """

    request_id: RequestId
    is_accepted: bool = False
    queue_position: int | None = None
    waited_ms: float | None = None


@dataclass(slots=True)
class _Bill:
    """Whose tokens were set aside for a request: what it does not use goes back when it ends."""

    caller: Caller
    prompt_count: int
    reserved_count: int
    is_started: bool = False

    def settle(self, generated_count: int) -> None:
        """It has ended; what never ran has used nothing."""
        used_count = self.prompt_count + generated_count if self.is_started else 0
        self.caller.give_back_tokens(max(self.reserved_count - used_count, 0))


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the server can do its work, and if not, why, in a sentence."""

    status: str
    reason: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether it can."""
        return self.status == "ok"


def body_limit_for(model_len_max: int) -> int:
    """The largest body that a model of this length has use for."""
    return max(limits.BODY_BYTES_MIN, limits.BODY_BYTES_PER_TOKEN * model_len_max)


class Service:
    """One engine behind HTTP. Made once, handed to the app."""

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
        assert settings.served_model_name, "a model has a name"
        self.settings = settings
        self.body_limit = settings.body_limit or body_limit_for(engine.settings.model_len_max)
        self.bodies_bytes_max = max(limits.BODIES_BYTES_MIN, limits.BODIES_MAX * self.body_limit)
        """Bytes of bodies that may be held at once, over all requests."""
        self.clock = clock or SystemClock()
        self.keys = KeyRing(keys, self.clock, engine.settings)
        self.tickets: dict[RequestId, Ticket] = {}
        self.live_calls = LiveCalls()
        self.answer_listeners: list[Callable[[str, int, str | None], None]] = []
        """Told of every HTTP answer: the pattern of its route, its status, and why it is a
        refusal if it is one."""
        self.created = now_s()
        self.is_draining = False
        self.is_stopping = False
        self.intake = Intake()
        self._work_count = 0
        self._bills: dict[RequestId, _Bill] = {}
        self._body_bytes = 0
        # The engine refuses what is more than can run and wait, and knows best when to come
        # back; this bound is for what has not reached it yet.
        settings_of = engine.settings
        self._work_max = (
            settings_of.max_num_queued_reqs + settings_of.max_num_seqs + limits.DOOR_REQUESTS_MAX
        )
        self._waiting: set[RequestId] = set()
        self._live_count = 0
        self._door = Door(has_several_callers=len(keys) > 1)
        engine.observe(self._take)
        engine.observe(self._charge)

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

    @property
    def load(self) -> int:
        """Requests for completions that are being served."""
        return self._work_count

    def left_s(self, due_at: float | None) -> float | None:
        """Of the time for what is not with the engine yet. Raises DeadlineExceeded."""
        left_s = None if due_at is None else due_at - self.clock.now()
        if left_s is not None and left_s <= 0:
            raise _late()
        return left_s

    async def at_the_door(
        self,
        make: Callable[[], Made],
        stay: Stay,
        receive: Receive,
        due_at: float | None = None,
    ) -> Made:
        """Do something slow, such as tokenising, off the event loop, unless the client leaves.

        Raises Draining, ClientLeft, and DeadlineExceeded when it is not done at `due_at`; what
        is being made then is told by its `stay` that nobody waits for it.
        """
        left_s = self.left_s(due_at)
        waiting = asyncio.create_task(self._door.make(stay, make))
        leaving = asyncio.create_task(wait_leaving(receive))
        try:
            either: set[asyncio.Task[Any]] = {waiting, leaving}  # Any: made, or nothing
            await asyncio.wait(either, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientLeft if leaving.done() else _late()
            return await waiting
        except asyncio.CancelledError:
            # Either this task was cancelled, or the door was closed before its turn came.
            if waiting.cancelled() and self.is_stopping:
                raise Draining("the server was shut down.") from None
            raise
        finally:
            stay.is_wanted = False
            # What waits for its turn is not begun.
            waiting.cancel()
            leaving.cancel()

    @contextmanager
    def working(self, caller: Caller) -> Iterator[Callable[[], None]]:
        """What to call when the body of a request is there: from then on it is counted.

        Raises Draining, or QueueFull, and so does the call: a body takes its time.
        """
        self._check_room(caller)
        count = 0

        def begin() -> None:
            nonlocal count
            assert count == 0, "begun twice"
            self._check_room(caller)
            count = 1
            self._work_count += 1
            caller.work_count += 1

        try:
            yield begin
        finally:
            self._work_count -= count
            caller.work_count -= count

    def _check_room(self, caller: Caller) -> None:
        if self.is_draining:
            raise Draining("the server is shutting down.")
        if caller.work_max is not None and caller.work_count >= caller.work_max:
            retry_s = self._retry_s()
            raise QueueFull(
                f"{caller.work_count} requests of this key are being served or wait, which is its "
                f"share of what the server takes; try again in {retry_s:.1f} s.",
                retry_s,
            )
        if self._work_count >= self._work_max:
            retry_s = self._retry_s()
            raise QueueFull(
                f"{self._work_count} requests are being served or wait, and the server takes no "
                "more (its limits are max_num_seqs and max_num_queued_reqs); try again in "
                f"{retry_s:.1f} s.",
                retry_s,
            )

    @contextmanager
    def holding(self) -> Iterator[Callable[[int], None]]:
        """What to call with the bytes of a body as they arrive; it raises Refusal.

        All but the first are counted until the HTTP request has ended, over all requests there
        are.
        """
        held, spared = 0, limits.BODY_BYTES_SPARED

        def hold(count: int) -> None:
            nonlocal held, spared
            free = min(count, spared)
            spared -= free
            count -= free
            if self._body_bytes + count > self.bodies_bytes_max:
                raise Refusal(
                    "too_many_bytes",
                    "The server holds as many bytes of requests as it may; try again later.",
                    headers={"connection": "close", **retry_headers(self._retry_s())},
                )
            held += count
            self._body_bytes += count

        try:
            yield hold
        finally:
            self._body_bytes -= held

    def bill(self, requests: Sequence[Request], caller: Caller) -> None:
        """Count the completions of one call, and set its tokens aside until they have ended.

        All or none of them. Raises Refusal and InvalidRequest.
        """
        count = sum(each.params.n for each in requests)
        caller.count_completions(count)
        if caller.tokens is None:
            return
        bills = {each.id: _Bill(caller, len(each.prompt), self._most(each)) for each in requests}
        try:
            caller.reserve_tokens(sum(bill.reserved_count for bill in bills.values()))
        except (Refusal, InvalidRequest):
            caller.uncount_completions(count)
            raise
        self._bills.update(bills)

    def unbill(self, request_id: RequestId) -> None:
        """The request never reached the engine."""
        self._settle(request_id, 0)

    @contextmanager
    def ticketed(self, tickets: list[Ticket]) -> Iterator[None]:
        """Makes known whose requests these are, while they live."""
        for ticket in tickets:
            self.tickets.setdefault(ticket.request_id, ticket)
        try:
            yield
        finally:
            for ticket in tickets:
                if self.tickets.get(ticket.request_id) is ticket:
                    del self.tickets[ticket.request_id]

    def health(self) -> Health:
        """Whether work gets done. A drain is no illness."""
        if self.engine.state is EngineState.STOPPED:
            return Health("stopped", "The engine has stopped; its log says why.")
        if not self.engine.is_backend_ready:
            return Health("restarting", "The backend was lost and is being started again.")
        still_s = self.engine.still_s
        if still_s > self.settings.stall_timeout:
            return Health(
                "stalled",
                f"No forward pass has ended for {still_s:.0f} s, "
                f"and {self._live_count} requests wait for one.",
            )
        return Health("ok")

    def readiness(self) -> Health:
        """Whether new work is welcome."""
        if self.is_draining or self.engine.state is EngineState.DRAINING:
            return Health("draining", "The server is shutting down.")
        return self.health()

    def drain(self) -> None:
        """Refuse new work from here on, bodies on their way included; what was taken goes on."""
        self.is_draining = True
        self.intake.close()
        # Nobody else comes to fill a group, or to resume what is paused.
        self.engine.release()

    async def stop(self) -> None:
        """End the engine; what still runs is told so."""
        self.is_draining = self.is_stopping = True
        await asyncio.to_thread(self.engine.close, 0.0)
        self._door.close()
        self.intake.end()

    def cut_short(self) -> None:
        """End the backend's process in mid-batch, where it has one: nobody wants the rest."""
        if isinstance(self.engine.backend, ProcessBackend):
            self.engine.backend.close()

    def _retry_s(self) -> float:
        stats = self.engine.stats()
        rate = stats.requests_per_second
        return 0.25 * self._work_count / rate if rate > 0 else 1.0

    def _take(self, record: Record) -> None:
        """Engine thread: note what endpoints and /health want to know."""
        match record:
            case RequestAccepted():
                self._live_count += 1
                ticket = self.tickets.get(record.request_id)
                if ticket is not None:
                    ticket.queue_position = len(self._waiting)
                    ticket.is_accepted = True
                self._waiting.add(record.request_id)
            case RequestStarted():
                self._waiting.discard(record.request_id)
                ticket = self.tickets.get(record.request_id)
                if ticket is not None:
                    ticket.waited_ms = record.waited_ms
            case RequestDone() | RequestFailed():
                self._waiting.discard(record.request_id)
                self._live_count -= 1
            case _:
                pass

    def _charge(self, record: Record) -> None:
        """Engine thread: give back what was not used by what ended, before its caller is told."""
        match record:
            case RequestStarted():
                bill = self._bills.get(record.request_id)
                if bill is not None:
                    bill.is_started = True
            case RequestDone() | RequestFailed():
                self._settle(record.request_id, record.generated_tokens)
            case RequestRefused():
                self._settle(record.request_id, 0)
            case _:
                pass

    def _settle(self, request_id: RequestId, generated_count: int) -> None:
        bill = self._bills.pop(request_id, None)
        if bill is not None:
            bill.settle(generated_count)

    def _most(self, request: Request) -> int:
        """The most tokens that a request may take: its prompt, and all that it may make."""
        params, prompt_count = request.params, len(request.prompt)
        room = self.model_len_max - prompt_count
        made_max = room if params.max_tokens is None else min(params.max_tokens, room)
        return prompt_count + params.n * made_max


def _late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the time limit passed before the request reached the engine; raise deadline_ms."
    )


def now_s() -> int:
    """The present moment as OpenAI's `created` has it."""
    return int(datetime.now(UTC).timestamp())
