"""Asks the service for the answer to one line: `ServiceAsker`. Event loop.

A line is checked, prepared and answered by the code for any call, in worker threads with turns. It
differs in three things: it counts neither against its key's rates nor against its share, it runs
behind all live calls (`behind_live_calls`), and its time limit is that of its batch. A suspect,
with which backends have ended, is tokenised while no other line is.

Tests: tests/e2e/batches/test_batches.py, test_bad_lines.py and test_deadly_lines.py.
"""

import asyncio
import json
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from starlette.types import Message

from jitney.core.request import Priority, Request
from jitney.engine.answer import Usage
from jitney.engine.engine import EngineState
from jitney.errors import (
    BackendCrashed,
    CapacityError,
    DeadlineExceeded,
    Draining,
    EngineStopped,
    InputCrashed,
    NoRoom,
    QueueFull,
)
from jitney.server import limits as server_limits
from jitney.server.admission.keys import Caller
from jitney.server.batches import limits
from jitney.server.batches.batch_input import InputChanged
from jitney.server.batches.job_bodies import BatchLine
from jitney.server.batches.lines import parse_line
from jitney.server.batches.reading_turns import ReadingTurns
from jitney.server.batches.stored import LineTokens
from jitney.server.call import Call
from jitney.server.error_object import Refusal
from jitney.server.generation import Generation
from jitney.server.http.error_response import refusal_for
from jitney.server.http.json_slices import encode_json
from jitney.server.openai.bodies import CompletionBody
from jitney.server.openai.chat_body import ChatBody
from jitney.server.openai.check_body import check_fields
from jitney.server.openai.replies import ChatChoices, CompletionChoices, Reply
from jitney.server.openai.translate import (
    PreparedCall,
    check_model,
    prepare_chat,
    prepare_completion,
)
from jitney.server.responses import whole_response
from jitney.server.service import Service

AHEAD = 2
"""Lines that are asked for each one that can run, so that the engine never waits for the next. Only
without live calls: those would find more lines in the engine's queue."""

_Read = tuple[PreparedCall, type[ChatChoices] | type[CompletionChoices]]

_REFUSED = {
    "stream": "a line has one answer; leave it out",
    "deadline_ms": "the time of a line is that of its batch; leave it out",
    "priority": "lines run behind all live calls; leave it out",
}
"""Fields of a body that have no meaning in a batch."""


class TryLater(Exception):
    """There is no room for the line now."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:.2f} s")
        self.seconds = min(max(seconds, limits.LATER_S_MIN), limits.LATER_S_MAX)


class AskingOver(Exception):
    """Nothing more is answered here: the engine has stopped, or the server drains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineAnswer:
    """The answer to a line: what a caller would have got over HTTP."""

    status: int
    request_id: str
    body: bytes
    tokens: LineTokens


class LineCrashed(Exception):
    """So many backends ended while they read the line. Its answer, if it is asked no more."""

    def __init__(self, deaths: int, answer: LineAnswer) -> None:
        super().__init__(f"{deaths} backends ended")
        self.deaths = deaths
        self.answer = answer


class Asker(Protocol):
    """Who answers lines: the service of this process, or another that spreads them."""

    @property
    def in_flight_max(self) -> int:
        """How many lines may be asked at once."""
        ...

    @property
    def line_bytes_max(self) -> int:
        """The longest line."""
        ...

    @property
    def values_max(self) -> int:
        """The most strings and numbers on one line."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether new lines are welcome."""
        ...

    def serves(self, owner: str, model: str) -> bool:
        """Whether lines of this owner, for this model, can be asked here."""
        ...

    async def ask(
        self, owner: str, custom_id: str, content: bytes, *, is_suspect: bool = False
    ) -> LineAnswer:
        """The answer to the line with this id; a suspect is read alone.

        Raises TryLater, LineCrashed, AskingOver and InputChanged.
        """
        ...


def behind_live_calls(request: Request, *, has_live_calls: bool = True) -> Request:
    """The same request as one of a job: behind live calls, if there are any, with the time of its
    batch."""
    return replace(
        request,
        is_background=has_live_calls,
        priority=Priority.LOW,  # what people see of it; the scheduler looks at the line above
        queue_timeout_s=float(limits.WINDOW_S),
        request_timeout_s=float(limits.WINDOW_S),
    )


class ServiceAsker:
    """Asks the engine of this process. Without live calls, lines need not leave room for any."""

    def __init__(self, service: Service, *, has_live_calls: bool = True) -> None:
        self._service = service
        self._has_live_calls = has_live_calls
        self._reading = ReadingTurns()
        # As many as can run: they make way for live calls.
        self.in_flight_max = service.engine.settings.max_num_seqs
        if not has_live_calls:
            self.in_flight_max *= AHEAD
        self.line_bytes_max = service.body_limit + limits.LINE_ENVELOPE_BYTES
        self.values_max = max(
            server_limits.VALUES_MAX, service.body_limit // server_limits.VALUE_BYTES_USUAL
        )

    @property
    def is_open(self) -> bool:
        """Whether new lines are welcome."""
        service = self._service
        is_running = service.engine.state is EngineState.RUNNING
        return is_running and not service.admission.is_draining

    def serves(self, owner: str, model: str) -> bool:
        """Whether lines of this owner, for this model, can be asked here."""
        service = self._service
        is_known = service.keys.named(owner) is not None
        return is_known and model in service.settings.served_model_name

    async def ask(
        self, owner: str, custom_id: str, content: bytes, *, is_suspect: bool = False
    ) -> LineAnswer:
        """The answer to the line with this id; a suspect is read alone.

        Raises TryLater, LineCrashed, AskingOver and InputChanged.
        """
        service = self._service
        call = Call(f"req-{uuid.uuid4().hex}", service.clock.now())
        known = service.keys.named(owner)
        # Neither rates nor a share: those are for live calls.
        call.caller = Caller(None if known is None else known.key)
        try:
            if not self.is_open:
                raise AskingOver
            return await self._answer(call, custom_id, content, is_suspect=is_suspect)
        except (AskingOver, TryLater, InputChanged):
            raise
        except Exception as error:
            _raise_unless_final(error, service)
            refusal = refusal_for(error, call.http_id)
            answer = LineAnswer(
                status=refusal.status,
                request_id=call.http_id,
                body=encode_json(refusal.body),
                tokens=LineTokens(),
            )
            if isinstance(error, InputCrashed):
                raise LineCrashed(error.deaths, answer) from error
            return answer

    async def _answer(
        self, call: Call, custom_id: str, content: bytes, *, is_suspect: bool
    ) -> LineAnswer:
        service = self._service
        async with self._reading.taken(is_alone=is_suspect):
            prepared, choices = await self._read(call, custom_id, content)
        invariant = service.engine.backend.traits.batch_invariant
        reply = Reply(prepared, service.vocabulary, choices, batch_invariant=invariant)
        generation = Generation(service, prepared, call)
        response = await whole_response(generation, reply, _never)
        return LineAnswer(
            status=response.status_code,
            request_id=call.http_id,
            body=bytes(response.body),
            tokens=_tokens_of(generation.usages()),
        )

    async def _read(self, call: Call, custom_id: str, content: bytes) -> _Read:
        # As large work of a caller of its own: it never has all threads.
        turn = (f"batches of {call.caller.name}", True)
        work = partial(self._prepare, call, custom_id, content)
        preparing = self._service.worker_threads.submit(turn, work)
        try:
            return await preparing
        finally:
            call.is_wanted = False
            preparing.cancel()

    def _prepare(self, call: Call, custom_id: str, content: bytes) -> _Read:
        """On a worker thread: from the text of a line to requests."""
        line = _checked_line(custom_id, content, self.values_max)
        is_chat = line.url == "/v1/chat/completions"
        body = check_fields(dict(line.body), ChatBody if is_chat else CompletionBody)
        _check_body(body)
        check_model(self._service, body.model)
        if isinstance(body, ChatBody):
            prepared = prepare_chat(self._service, body, call)
        else:
            assert isinstance(body, CompletionBody), type(body)
            prepared = prepare_completion(self._service, body, call)
        requests = tuple(
            behind_live_calls(each, has_live_calls=self._has_live_calls)
            for each in prepared.requests
        )
        choices = ChatChoices if is_chat else CompletionChoices
        return replace(prepared, requests=requests), choices


def _checked_line(custom_id: str, content: bytes, values_max: int) -> BatchLine:
    """The line with this id. Raises Refusal, and InputChanged if it is not that line any more."""
    try:
        line = check_fields(parse_line(content, values_max), BatchLine)
    except Refusal:
        # It was right when it was noted. A limit may be smaller since then; its id is the same.
        if _id_on(content) != custom_id:
            raise InputChanged("a line is not what it was") from None
        raise
    if line.custom_id != custom_id:
        raise InputChanged("another line stands where a line was")
    return line


def _id_on(content: bytes) -> object:
    try:
        return json.loads(content)["custom_id"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def _check_body(body: Any) -> None:  # Any: a body of either kind
    for name, reason in _REFUSED.items():
        if getattr(body, name):
            raise Refusal(
                "unsupported_parameter",
                f"{name} is not supported in a batch: {reason}.",
                param=name,
            )


def _raise_unless_final(error: Exception, service: Service) -> None:
    """Raise TryLater or AskingOver where the line itself is not the reason."""
    if service.is_stopping or isinstance(error, Draining | EngineStopped):
        raise AskingOver from error
    if isinstance(error, QueueFull):
        raise TryLater(error.retry_after_s) from error
    is_momentary = isinstance(error, NoRoom | BackendCrashed | CapacityError | MemoryError)
    was_cut = isinstance(error, Refusal) and error.code == "cancelled"
    if (is_momentary and not isinstance(error, DeadlineExceeded | InputCrashed)) or was_cut:
        raise TryLater(limits.LATER_S_MAX) from error


async def _never() -> Message:
    """Nobody is connected who could leave."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("The future has no result")


def _tokens_of(usages: list[Usage]) -> LineTokens:
    return LineTokens(
        prompt=sum(each.prompt_count for each in usages),
        cached=sum(each.cached_count for each in usages),
        completion=sum(each.completion_count for each in usages),
    )
