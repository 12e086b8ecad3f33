"""The endpoints of Responses, one short function each. Event loop.

A stored response belongs to the key that it came with: for another key it is not there.

Tests: tests/e2e/openai_responses/test_protocol.py, test_stored.py and test_background.py.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from jitney.errors import RequestError
from jitney.server.admission.calls import Call
from jitney.server.answer_call import Generation, prepare, run_work
from jitney.server.batches.store_calls import Owner
from jitney.server.error_object import Refusal
from jitney.server.http.body_reader import unless_left
from jitney.server.openai.chat_body import ChatBody
from jitney.server.openai.replies import Json, Reply, dump_slices
from jitney.server.openai.translate import check_model
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.live_stream import LiveStream
from jitney.server.openai_responses.response_body import ResponseBody, check_response
from jitney.server.openai_responses.response_form import ResponseForm, response_id_of
from jitney.server.openai_responses.response_object import ResponseState, asked_of
from jitney.server.openai_responses.skipped_kinds import leave_out
from jitney.server.openai_responses.stored_items import listed_items, with_ids
from jitney.server.openai_responses.stored_responses import StoredResponses
from jitney.server.openai_responses.stored_rows import StoredResponse
from jitney.server.openai_responses.to_chat import chat_body, input_items
from jitney.server.responses import EVENT_HEADERS, whole_response
from jitney.server.routes import describe_body
from jitney.server.service import Service, now_s

_NAMES: Mapping[str, str] = {
    "logprobs": "top_logprobs",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning",
    "response_format": "text",
}
"""Fields of a chat, by their names here."""


Number = Annotated[int, Query(ge=-1, le=2**53)]
ItemCount = Annotated[int, Query(ge=1, le=limits.ITEMS_LISTED_MAX)]
After = Annotated[str | None, Query(max_length=256)]
Included = Annotated[list[str] | None, Query(max_length=limits.INCLUDE_MAX)]
Bracketed = Annotated[list[str] | None, Query(alias="include[]", max_length=limits.INCLUDE_MAX)]
"""As OpenAI's clients write it."""


def make_response_router(service: Service, stored: StoredResponses) -> APIRouter:
    """The endpoints of Responses."""
    router = APIRouter()

    async def note_include(
        request: Request, include: Included = None, bracketed: Bracketed = None
    ) -> None:
        # As in a body. Scores are there where the answer was made with them.
        leave_out({"include": [*(bracketed or ()), *(include or ())]}, _ignored(service, request))

    includes = [Depends(note_include)]

    @router.post("/v1/responses", **describe_body(ResponseBody, streams=True))
    async def create(request: Request) -> Response:
        """Answer a conversation."""
        return await _Answering(service, stored, request).answer()

    @router.get("/v1/responses/{response_id}", dependencies=includes)
    async def retrieve(
        owner: Owner,
        response_id: str,
        stream: bool = False,
        starting_after: Number = -1,
        include_obfuscation: bool = False,
    ) -> Response:
        """A stored response; or its events, behind a number."""
        if include_obfuscation:
            message = "Events are not padded here; leave include_obfuscation out."
            raise Refusal("unsupported_parameter", message, param="include_obfuscation")
        if stream:
            return _stream(await stored.events(owner, response_id, starting_after))
        return _object(await stored.whole(owner, response_id))

    @router.get("/v1/responses/{response_id}/input_items", dependencies=includes)
    async def list_input(
        owner: Owner,
        response_id: str,
        after: After = None,
        limit: ItemCount = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """What a stored response was asked with."""

        def page(found: StoredResponse) -> bytes:
            return dump_slices(listed_items(found.input, after, limit, order)).encode()

        return _object(await stored.read(owner, response_id, page))

    @router.delete("/v1/responses/{response_id}")
    async def delete(owner: Owner, response_id: str) -> Response:
        """Forget a stored response; one that runs ends."""
        await stored.remove(owner, response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    @router.post("/v1/responses/{response_id}/cancel")
    async def cancel(owner: Owner, response_id: str) -> Response:
        """End a background response; one that has ended stays as it is."""
        return _object(await stored.cancel(owner, response_id))

    return router


class _Answering:
    """One call of POST /v1/responses."""

    def __init__(self, service: Service, stored: StoredResponses, request: Request) -> None:
        self._service = service
        self._stored = stored
        self._request = request
        self._call = Call.of(request.scope)
        self._owner = self._call.caller.name
        self._items: list[Json] = []
        """What is stored of the input."""

    async def answer(self) -> Response:
        """The response, its events, or what says that it goes on."""
        body = await self._read()
        with _own_names():
            is_kept = await self._stored.check_kept(body, self._call)
            chat, asked = await self._translate(body, is_kept=is_kept)
            form = partial(self._form, asked, is_kept=is_kept)
            preparing = prepare(self._service, chat, self._call, form)
            generation = await unless_left(preparing, self._request)
        if body.background:
            return await self._go_on(generation, chat)
        if generation.reply.streams:
            stream = LiveStream(generation, self._keep)
            await stream.open(self._request)
            return stream
        return await self._whole(generation)

    async def _read(self) -> ResponseBody:
        service = self._service
        ignored = _ignored(service, self._request)
        check = partial(check_response, values_max=service.values_max, ignored=ignored)
        body: ResponseBody = await service.bodies.read(self._request, check)
        check_model(service, body.model)
        if body.background and body.deadline_ms is not None:
            message = "A background response has no deadline; leave deadline_ms out."
            raise Refusal("unsupported_parameter", message, param="deadline_ms")
        return body

    async def _translate(self, body: ResponseBody, *, is_kept: bool) -> tuple[ChatBody, Json]:
        """The chat, and what the object repeats of the body. What is large is done elsewhere."""
        earlier = await self._stored.earlier(self._call, body)
        referred = await self._stored.referred(self._call, body)

        def translate() -> tuple[ChatBody, Json]:
            if is_kept:
                self._items = with_ids(input_items(body, referred))
            chat = chat_body(body, earlier, referred)
            return chat, asked_of(body, self._service.model_name)

        if self._call.is_tiny and not (earlier or referred):
            return translate()
        return await unless_left(run_work(self._service, self._call, translate), self._request)

    def _form(self, asked: Json, reply: Reply, *, is_kept: bool) -> ResponseForm:
        state = ResponseState(
            id=response_id_of(reply),
            asked=asked,
            created_at=now_s(),
            status="in_progress",
            is_stored=is_kept,
        )
        return ResponseForm(reply, state)

    async def _keep(self, form: ResponseForm) -> bool:
        return await self._stored.keep(self._call, form, self._items)

    async def _whole(self, generation: Generation) -> Response:
        response = await whole_response(generation, self._request)
        form = _form_of(generation)
        if form.state.is_stored and not await self._keep(form):
            form.state.is_stored = False
            response.body = await _written(form.state)
            response.headers["content-length"] = str(len(response.body))
        return response

    async def _go_on(self, generation: Generation, chat: ChatBody) -> Response:
        """Answer at once: it goes on without its caller."""
        form = _form_of(generation)
        if generation.reply.streams:
            # Before it begins: a caller that is refused knows of no response.
            self._stored.check_streams(self._owner)
        state = await self._stored.queue(self._call, form, self._items, chat)
        if not generation.reply.streams:
            return _object(await _written(state))
        return _stream(await self._stored.events(self._owner, state.id, -1))


def _ignored(service: Service, request: Request) -> list[str] | None:
    return None if service.settings.strict else Call.of(request.scope).ignored


def _form_of(generation: Generation) -> ResponseForm:
    assert isinstance(generation.reply, ResponseForm), "it was prepared as a response"
    return generation.reply


async def _written(state: ResponseState) -> bytes:
    """Its object as JSON, which may be long."""
    return await asyncio.to_thread(lambda: dump_slices(state.object()).encode())


def _object(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _stream(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, headers=EVENT_HEADERS)


@contextmanager
def _own_names() -> Iterator[None]:
    """Errors name fields as they are called here."""
    try:
        yield
    except RequestError as error:
        own = _own_name(error.parameter)
        error.args = (_renamed(error.args[0], error.parameter, own),)
        error.parameter = own
        raise
    except Refusal as refusal:
        own = _own_name(refusal.param)
        refusal.message = _renamed(refusal.message, refusal.param, own)
        refusal.param = own
        raise


def _renamed(message: str, name: str | None, own: str | None) -> str:
    """The message, with the own name of the field where it begins with the other one."""
    return f"{own}{message.removeprefix(name)}" if name and message.startswith(name) else message


def _own_name(name: str | None) -> str | None:
    top = (name or "").partition("[")[0].partition(".")[0]
    return _NAMES.get(top, name)
