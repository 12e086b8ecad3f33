"""The floor below every protocol: from a checked body to its reply. Event loop.

`answer` gives the whole reply to a body as a value. `prepare` gives a `Generation`, for callers who
read a stream of chunks or do something in between. What is wrong is raised as an error. There is no
HTTP here. A caller who gives up cancels the task, or calls `Generation.cancel`: then the slots are
free within two ticks, whether the requests ran or waited. Routes, batches and tests call this.

Several prompts are one call: when the engine refuses one, the others are cancelled at once.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

from jitney.core.events import FinishReason
from jitney.core.request import Request
from jitney.engine.answer import Answer, Delta, Ending, Usage
from jitney.errors import DeadlineExceeded, Draining
from jitney.server import limits
from jitney.server.admission.calls import Call, Handles, LiveRequest, deadline_passed
from jitney.server.admission.worker_threads import NotShared
from jitney.server.error_object import Refusal, refusal_of
from jitney.server.openai.bodies import CompletionBody
from jitney.server.openai.chat_body import ChatBody
from jitney.server.openai.replies import Json, Reply, dump_json, dump_slices
from jitney.server.openai.translate import reply_steps
from jitney.server.service import Service

T = TypeVar("T")

_CONSTRAINTS = {"response_format", "tools", "structured_outputs", "thinking_token_budget"}
_OPENAI_REASONS = (None, FinishReason.STOP, FinishReason.LENGTH)


class ReplyForm(Protocol):
    """How the answers to the requests of a call are written in one protocol. `Reply` is OpenAI's;
    others are made from it."""

    @property
    def id(self) -> str:
        """The name of the reply."""

    @property
    def requests(self) -> tuple[Request, ...]:
        """One for each prompt."""

    @property
    def streams(self) -> bool:
        """Whether the caller reads events."""

    def whole(self, answers: list[Answer]) -> Json:
        """The reply, all at once."""

    def events(self, place: int, delta: Delta, completion_count: int) -> bytes:
        """What a delta of the request at this place adds to a stream."""

    def closing(self, usages: list[Usage]) -> bytes:
        """What ends a stream."""

    def failed(self, body: Json) -> bytes:
        """What ends a stream that failed, with OpenAI's error object."""


async def answer(service: Service, body: ChatBody | CompletionBody, call: Call) -> bytes:
    """The whole reply to a body, as JSON. Raises Refusal and JitneyError."""
    return await (await prepare(service, body, call)).whole()


def as_it_is(reply: Reply) -> ReplyForm:
    """OpenAI's form."""
    return reply


async def prepare(
    service: Service,
    body: ChatBody | CompletionBody,
    call: Call,
    form: Callable[[Reply], ReplyForm] = as_it_is,
) -> "Generation":
    """The requests of a body, made in a worker thread and not sent yet, and their reply in this
    form. Raises as `run_work`."""
    call.user = body.user
    if body.deadline_ms is not None:
        call.due_at = call.arrived_at + body.deadline_ms / 1e3
    # A constraint may take seconds to compile, however short it is.
    call.is_large |= bool(body.model_fields_set & _CONSTRAINTS)
    reply = form(await _prepare(service, body, call))
    generation = Generation(service, reply, call)
    call.reply_id, call.usages = reply.id, generation.usages
    return generation


async def _prepare(service: Service, body: ChatBody | CompletionBody, call: Call) -> Reply:
    make_steps = partial(reply_steps, service, body, call)
    has_one_prompt = isinstance(body, ChatBody) or isinstance(body.prompt, str)
    if call.is_tiny and not call.is_large and has_one_prompt and service.shares_work:
        begin = partial(service.shared_work.submit, call.turn, (make_steps(), call.still_wanted))
        with contextlib.suppress(NotShared):
            return await _in_time(service, call, begin)
    run_alone = service.text_steps.run_alone
    return await run_work(service, call, lambda: run_alone(make_steps(), call.still_wanted))


async def run_work(service: Service, call: Call, work: Callable[[], T]) -> T:
    """The result of work in a worker thread; keys take turns.

    Raises the error of the work, Draining when a shutdown ends it, and DeadlineExceeded when it is
    not done in time.
    """
    return await _in_time(service, call, partial(service.worker_threads.submit, call.turn, work))


async def _in_time(service: Service, call: Call, begin: Callable[[], "asyncio.Future[T]"]) -> T:
    deadline = asyncio.timeout(call.left_s(service.clock.now()))
    try:
        async with deadline:
            return await begin()
    except NotShared:
        raise
    except BaseException:
        # Work that a thread has begun sees this; work that waits never begins.
        call.is_wanted = False
        if deadline.expired():
            raise deadline_passed() from None
        raise


class Generation:
    """The requests of one call, from their sending to their end. Used once."""

    def __init__(self, service: Service, reply: ReplyForm, call: Call) -> None:
        self.service = service
        self.reply = reply
        self.call = call
        self.live_requests: list[LiveRequest] = []
        """How each request waits, once it is sent."""
        self._handles: Handles = []
        self._token_count = 0
        """Of all deltas so far."""
        self._open = list(range(len(reply.requests)))
        """The places of the requests whose end was not read yet."""
        self._cut: set[int] = set()
        """The places of those that ended without a name in OpenAI's interface."""
        self._failure: Exception | None = None
        """To be raised by the next `read`."""

    async def whole(self) -> bytes:
        """Send the requests, and write the reply as JSON when they have ended. Raises any error of
        theirs, and all that `running` raises."""
        with self.running():
            await self.wait_accepted()
            answers = [await handle.result_async() for handle in self._handles]
        if any(each.was_cancelled for each in answers):
            raise self._cancelled()
        if self.is_large:
            return await asyncio.to_thread(lambda: dump_slices(self.reply.whole(answers)).encode())
        return dump_json(self.reply.whole(answers)).encode()

    async def wait_accepted(self) -> None:
        """Wait until the engine has accepted all of several requests. Raises any refusal."""
        if len(self._handles) > 1:
            for handle in self._handles:
                await handle.wait_accepted_async()

    def listen(self, listener: Callable[[], None]) -> None:
        """Have `listener` called once `read` has something new; on the engine thread, so it must be
        quick."""
        for place in self._open:
            self._handles[place].listen(listener)

    @property
    def is_over(self) -> bool:
        """Whether `read` has given the last event of each request."""
        return not self._open and self._failure is None

    def read(self, listener: Callable[[], None]) -> bytes:
        """The new events of a stream, within `running`; those of a slow reader are merged. If more
        will come, `listen`.

        Raises the error of a request, once everything before it was read. An end without a name in
        OpenAI's interface is one.
        """
        if self._failure is not None:
            raise self._failure
        found: list[bytes] = []
        try:
            for place in tuple(self._open):
                self._read(place, found, listener)
        except Exception as error:
            if not any(found):
                raise
            self._failure = error
            listener()
        return b"".join(found)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Send the requests. They end with this context, or at the deadline.

        Raises QueueFull, EngineStopped, and a Refusal when the caller's rate is used up.
        """
        service, due_at = self.service, self.call.due_at
        with contextlib.ExitStack() as stack:
            name = self.call.caller.name
            stack.enter_context(service.live_calls.registered(name, self.reply.id, self._handles))
            if due_at is not None:
                # The engine itself may be busy with a batch or a new backend.
                wait_s = due_at - service.clock.now() + limits.DEADLINE_GRACE_S
                timer = asyncio.get_running_loop().call_later(wait_s, self._abandon)
                stack.callback(timer.cancel)
            stack.callback(self.cancel)
            self._send()
            yield

    def cancel(self) -> None:
        """Nobody waits for the reply any more."""
        for handle in self._handles:
            handle.cancel()

    def _send(self) -> None:
        service, requests, streams = self.service, self.reply.requests, self.reply.streams
        self.live_requests = service.live_calls.reserve(requests, self.call.caller)
        try:
            for request in requests:
                handle = service.engine.send(
                    request, streams=streams, is_bounded=streams, arrived_at=self.call.arrived_at
                )
                self._handles.append(handle)
        except BaseException:
            for request in requests[len(self._handles) :]:
                service.live_calls.release(request.id)
            raise

    def _abandon(self) -> None:
        for handle in self._handles:
            handle.abandon(DeadlineExceeded("The request passed its deadline."))

    @property
    def is_large(self) -> bool:
        """Whether the reply takes long to form and to encode, once all requests have ended."""
        return _is_large(self.answers())

    @property
    def is_accepted(self) -> bool:
        """Whether the engine has accepted all requests."""
        return all(each.queue_position is not None for each in self.live_requests)

    def answers(self) -> list[Answer]:
        """The answer of each request that has ended."""
        endings = [handle.ending for handle in self._handles]
        return [each.answer for each in endings if each is not None and each.answer is not None]

    def usages(self) -> list[Usage]:
        """The usage of each request that has ended."""
        return [each.usage for each in self.answers()]

    def _read(self, place: int, found: list[bytes], listener: Callable[[], None]) -> None:
        """Add the new events of one request."""
        for item in self._handles[place].read(listener):
            if isinstance(item, Ending):
                self._open.remove(place)
                item.raise_error()
                # A fleet cancels without a delta that says so.
                if place in self._cut or (item.answer is not None and item.answer.was_cancelled):
                    raise self._cancelled()
                return
            if item.finish_reason not in _OPENAI_REASONS:
                self._cut.add(place)
                if not (item.text or item.tokens):
                    continue
                item = replace(item, finish_reason=None, stop_reason=None)
            self._token_count += len(item.tokens)
            found.append(self.reply.events(place, item, self._token_count))

    def _cancelled(self) -> Exception:
        """The error for a request that ended and was not cancelled here."""
        if self.service.is_stopping:
            refusal = refusal_of(Draining("The server was shut down."))
            refusal.message = "The answer was cut short by a shutdown of the server; ask again."
            return refusal
        messages = [each.message for ended in self.answers() for each in ended.completions]
        reason = next((each for each in messages if each), "The request was cancelled.")
        return Refusal("cancelled", reason)


def _is_large(answers: list[Answer]) -> bool:
    """By tokens and logprobs."""
    count = 0
    for each in answers:
        params = each.request.params
        generated = sum(len(completion.tokens) for completion in each.completions)
        count += generated if params.logprobs is None else generated * (params.logprobs + 2)
        if params.prompt_logprobs is not None:
            count += len(each.request.prompt) * (params.prompt_logprobs + 2)
    return count > limits.INLINE_VALUES_MAX
