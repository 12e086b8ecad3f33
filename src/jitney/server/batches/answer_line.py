"""Answers one line of a batch: `LineAnswerer`. Event loop.

A line is checked and answered by the code for any call (`jitney.server.answer_call`). It differs in
three things: it counts neither against its key's rates nor against its share, it runs behind all
live calls, and its time limit is that of its batch. A suspect, with which backends have ended, is
tokenised while no other line is.

Tests: tests/e2e/batches/test_batches.py, test_bad_lines.py and test_deadly_lines.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

from jitney import errors
from jitney.engine.answer import Usage
from jitney.engine.engine import EngineState
from jitney.server.admission.calls import Call
from jitney.server.admission.keys import Caller
from jitney.server.answer_call import ReplyForm, as_it_is, prepare, run_work
from jitney.server.anthropic.message_body import MessagesBody
from jitney.server.anthropic.message_chat import chat_of, check_name
from jitney.server.anthropic.message_fields import UNKNOWN
from jitney.server.anthropic.message_reply import message_form
from jitney.server.batches import limits
from jitney.server.batches.batch_input import InputChanged
from jitney.server.batches.lines import BatchLine, check_line, parse_line
from jitney.server.batches.message_lines import (
    MESSAGES,
    MessageLine,
    answered_message,
    refused_message,
)
from jitney.server.batches.rows import LineResult, StoredBatch, StoredLine, answered_line
from jitney.server.error_object import Refusal, refusal_for
from jitney.server.openai.bodies import CompletionBody
from jitney.server.openai.chat_body import ChatBody
from jitney.server.openai.check_body import check_fields
from jitney.server.openai.replies import Reply, dump_json
from jitney.server.openai.translate import check_model
from jitney.server.service import Service

CheckedBody = tuple[ChatBody | CompletionBody, Callable[[Reply], ReplyForm]]
"""A body, and how its reply is written."""

AHEAD = 2
"""Lines that are asked for each one that can run, so that the engine never waits for the next. Only
without live calls: those would find more lines in the engine's queue."""

_KINDS: Mapping[str, type[ChatBody] | type[CompletionBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
}
_REFUSED = {
    "stream": "a line has one answer; leave it out",
    "deadline_ms": "the time of a line is that of its batch; leave it out",
    "priority": "lines run behind all live calls; leave it out",
}
"""Fields of a body that have no meaning in a batch."""


class ReadingTurns:
    """Who may be tokenised. One that wants to be alone waits for those before it, and those after
    it wait for it."""

    def __init__(self) -> None:
        self._entry = asyncio.Lock()
        """Taken in the order in which it was asked for. One that is alone keeps it."""
        self._count = 0
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    @asynccontextmanager
    async def taken(self, *, is_alone: bool) -> AsyncIterator[None]:
        """A turn, as long as the block lasts."""
        async with self._entry:
            if is_alone:
                await self._is_empty.wait()
                yield
                return
            self._count += 1
            self._is_empty.clear()
        try:
            yield
        finally:
            self._count -= 1
            if not self._count:
                self._is_empty.set()


class LineAnswerer:
    """Answers lines with a service. Without live calls, lines need not leave room for any."""

    def __init__(self, service: Service, *, has_live_calls: bool = True) -> None:
        self._service = service
        self._has_live_calls = has_live_calls
        self._reading = ReadingTurns()
        # As many as can run: they make way for live calls.
        self.in_flight_max = service.engine.settings.max_num_seqs
        if not has_live_calls:
            self.in_flight_max *= AHEAD
        self.line_bytes_max = service.body_limit + limits.LINE_ENVELOPE_BYTES
        self.values_max = service.values_max

    @property
    def is_open(self) -> bool:
        """Whether new lines are welcome."""
        is_running = self._service.engine.state is EngineState.RUNNING
        return is_running and not self._service.admission.is_draining

    def serves(self, owner: str, model: str) -> bool:
        """Whether lines of this owner, for this model, can be answered here."""
        return self._service.serves(owner, model)

    async def answer(
        self,
        batch: StoredBatch,
        line: StoredLine,
        content: bytes,
        request_id: str,
        *,
        is_suspect: bool = False,
    ) -> LineResult:
        """The result of the line with this content; a suspect is read alone.

        Raises QueueFull if there is no room now, InputCrashed if backends ended while they read it,
        EngineStopped if nothing more is answered here, and InputChanged.
        """
        service = self._service
        call = Call(
            request_id,
            service.clock.now(),
            window_s=float(limits.WINDOW_S),
            is_background=self._has_live_calls,
            is_large=True,  # such work never has all worker threads
        )
        known = service.keys.named(batch.owner)
        # Neither rates nor a share: those are for live calls.
        call.caller = Caller(None if known is None else known.key)
        try:
            if not self.is_open:
                raise errors.EngineStopped("Nothing more is answered here.")
            check = partial(self._checked_body, batch, line, content, call)
            body, usage = await self._answer(call, check, is_suspect=is_suspect)
        except Exception as error:
            self._raise_unless_final(error)
            return refused(error, batch, line, request_id)
        reply = _answered(batch, line, request_id, body, call.ignored)
        return LineResult(
            batch=batch.serial, number=line.number, is_done=True, reply=reply, usage=usage
        )

    async def _answer(
        self, call: Call, check: Callable[[], CheckedBody], *, is_suspect: bool
    ) -> tuple[bytes, Usage]:
        """The body of the answer, and its tokens."""
        body, form = await run_work(self._service, call, check)
        async with self._reading.taken(is_alone=is_suspect):
            generation = await prepare(self._service, body, call, form)
        encoded = await generation.whole()
        return encoded, _sum(generation.usages())

    def _checked_body(
        self, batch: StoredBatch, line: StoredLine, content: bytes, call: Call
    ) -> CheckedBody:
        """On a worker thread: the body on a line, and the form of its reply. Raises Refusal and
        InputChanged."""
        found = _checked_line(batch.endpoint, line.custom_id, content, self.values_max)
        ignored = None if self._service.settings.strict else call.ignored
        if isinstance(found, MessageLine):
            unknown = UNKNOWN if UNKNOWN in (batch.metadata or {}) else None
            return self._checked_message(found, call.id, ignored, unknown)
        body = check_fields(dict(found.body), _KINDS[found.url], ignored)
        for name, reason in _REFUSED.items():
            if getattr(body, name):
                message = f"{name} is not supported in a batch: {reason}."
                raise Refusal("unsupported_parameter", message, param=name)
        check_model(self._service, body.model)
        return body, as_it_is

    def _checked_message(
        self, line: MessageLine, request_id: str, ignored: list[str] | None, unknown: str | None
    ) -> CheckedBody:
        """The same for Anthropic's form."""
        body = check_fields(dict(line.params), MessagesBody, ignored, unknown)
        if body.stream:
            message = f"stream is not supported in a batch: {_REFUSED['stream']}."
            raise Refusal("unsupported_parameter", message, param="stream")
        check_name(self._service, body.model, ignored)
        return chat_of(body, ignored), message_form(body, request_id)

    def _raise_unless_final(self, error: Exception) -> None:
        """Raise what `answer` says where the line itself is not the reason of an error."""
        if self._service.is_stopping or isinstance(error, errors.Draining | errors.EngineStopped):
            raise errors.EngineStopped("Nothing more is answered here.") from error
        if isinstance(error, errors.QueueFull | errors.InputCrashed | InputChanged):
            raise error
        was_cut = isinstance(error, Refusal) and error.code == "cancelled"
        if was_cut or isinstance(error, errors.NoRoom | errors.BackendCrashed | MemoryError):
            message = "There is no room for the line now."
            raise errors.QueueFull(message, limits.LATER_S_MAX) from error


def refused(error: Exception, batch: StoredBatch, line: StoredLine, request_id: str) -> LineResult:
    """The result of a line that ended with an error."""
    refusal = refusal_for(error, request_id)
    if batch.endpoint == MESSAGES:
        reply = refused_message(line.custom_id, refusal, request_id)
    else:
        body = dump_json(refusal.body).encode()
        reply = answered_line(_id_of(line), refusal.status, request_id, body)
    return LineResult(batch=batch.serial, number=line.number, is_done=False, reply=reply)


def _answered(
    batch: StoredBatch, line: StoredLine, request_id: str, body: bytes, ignored: list[str]
) -> bytes:
    if batch.endpoint == MESSAGES:
        return answered_message(_id_of(line), body, ignored)
    return answered_line(_id_of(line), 200, request_id, body, ignored)


def _id_of(line: StoredLine) -> str:
    assert line.custom_id is not None, "A line without an id has failed when it was read"
    return line.custom_id


def _checked_line(
    endpoint: str | None, custom_id: str | None, content: bytes, values_max: int
) -> BatchLine | MessageLine:
    """The line with this id. Raises Refusal, and InputChanged if it is not that line any more."""
    try:
        line = check_line(parse_line(content, values_max), endpoint)
        if line.custom_id == custom_id:
            return line
    except Refusal:
        # It was right when it was noted. A limit may be smaller since then; its id is the same.
        if _id_on(content) == custom_id:
            raise
    raise InputChanged("a line is not what it was")


def _id_on(content: bytes) -> object:
    try:
        return json.loads(content)["custom_id"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None


def _sum(usages: list[Usage]) -> Usage:
    return Usage(
        prompt_count=sum(each.prompt_count for each in usages),
        completion_count=sum(each.completion_count for each in usages),
        cached_count=sum(each.cached_count for each in usages),
    )
