"""The endpoints of Responses, one short function each. Event loop.

Tests: tests/e2e/openai_responses/test_protocol.py, test_stored.py and test_background.py.
"""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from jitney.server.admission.calls import Call
from jitney.server.answer_call import prepare
from jitney.server.http.body_reader import unless_left
from jitney.server.openai.replies import Reply
from jitney.server.openai.translate import check_model
from jitney.server.openai_responses.live_stream import LiveStream
from jitney.server.openai_responses.response_body import ResponseBody, check_response
from jitney.server.openai_responses.response_form import ResponseForm, response_id_of
from jitney.server.openai_responses.response_object import ResponseState, asked_of
from jitney.server.openai_responses.to_chat import chat_body
from jitney.server.responses import whole_response
from jitney.server.routes import describe_body
from jitney.server.service import Service, now_s


def make_response_router(service: Service) -> APIRouter:
    """The endpoints of Responses."""
    router = APIRouter()

    @router.post("/v1/responses", **describe_body(ResponseBody, streams=True))
    async def create(request: Request) -> Response:
        """Answer a conversation."""
        body = await _read(service, request)
        preparing = prepare(
            service, chat_body(body), Call.of(request.scope), partial(_form, service, body)
        )
        generation = await unless_left(preparing, request)
        if not generation.reply.streams:
            return await whole_response(generation, request)
        stream = LiveStream(generation)
        await stream.open(request)
        return stream

    return router


async def _read(service: Service, request: Request) -> ResponseBody:
    ignored = None if service.settings.strict else Call.of(request.scope).ignored
    check = partial(check_response, values_max=service.values_max, ignored=ignored)
    body: ResponseBody = await service.bodies.read(request, check)
    check_model(service, body.model)
    return body


def _form(service: Service, body: ResponseBody, reply: Reply) -> ResponseForm:
    state = ResponseState(
        id=response_id_of(reply),
        asked=asked_of(body, service.model_name),
        created_at=now_s(),
        status="in_progress",
    )
    return ResponseForm(reply, state)
