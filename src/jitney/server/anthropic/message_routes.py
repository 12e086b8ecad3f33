"""The endpoints of Anthropic's Messages, one short function each. Event loop.

A body is translated to a chat, which is answered as any other (`jitney.server.answer_call`), and
the reply is written in Anthropic's form. Batches of messages are in `jitney.server.batches`.

Tests: tests/e2e/server/test_messages.py.
"""

from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from jitney.errors import ModelError
from jitney.server.admission.calls import Call
from jitney.server.answer_call import prepare, run_work
from jitney.server.anthropic.message_body import CountBody, MessagesBody
from jitney.server.anthropic.message_chat import chat_of, check_name
from jitney.server.anthropic.message_errors import PATH
from jitney.server.anthropic.message_fields import UNKNOWN
from jitney.server.anthropic.message_reply import PING, message_form
from jitney.server.http.body_reader import unless_left
from jitney.server.openai import conversation
from jitney.server.openai.bodies import Strict
from jitney.server.openai.chat_body import ChatBody
from jitney.server.openai.check_body import check_fields, parse_object
from jitney.server.openai.replies import Json
from jitney.server.responses import respond
from jitney.server.service import Service

Body = TypeVar("Body", bound=CountBody)

BODIES: tuple[type[Strict], ...] = (MessagesBody, CountBody)
"""Described in the OpenAPI document."""


def make_router(service: Service) -> APIRouter:
    """The endpoints that make or count tokens."""
    router = APIRouter()

    @router.post(PATH, openapi_extra=described(MessagesBody))
    async def messages(request: Request) -> Response:
        """Answer a conversation, in Anthropic's form."""
        call = Call.of(request.scope)
        body, chat = await _read(service, request, MessagesBody)
        preparing = prepare(service, chat, call, message_form(body, call.id))
        return await respond(preparing, request, PING)

    @router.post(f"{PATH}/count_tokens", openapi_extra=described(CountBody))
    async def count_tokens(request: Request) -> Response:
        """How many tokens a conversation has as a prompt."""
        call = Call.of(request.scope)
        _, chat = await _read(service, request, CountBody)
        counting = run_work(service, call, partial(_count, service, chat, call))
        return JSONResponse({"input_tokens": await unless_left(counting, request)})

    return router


def described(kind: type[Strict]) -> Json:
    """How the OpenAPI document describes a body."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


async def _read(service: Service, request: Request, kind: type[Body]) -> tuple[Body, ChatBody]:
    """The body of a request, and the chat that it means."""
    ignored = None if service.settings.strict else Call.of(request.scope).ignored
    unknown = unknown_of(request)

    def check(content: bytes) -> tuple[Body, ChatBody]:
        fields = parse_object(content, service.values_max)
        body = check_fields(fields, kind, ignored, unknown)
        check_name(service, body.model, ignored)
        return body, chat_of(body, ignored)

    return await service.bodies.read(request, check)


def unknown_of(request: Request) -> str | None:
    """What fields that nobody knows are called, if they are ignored. A caller that tries betas
    sends some: an agent that was updated would be sent away otherwise."""
    return UNKNOWN if "anthropic-beta" in request.headers else None


def _count(service: Service, chat: ChatBody, call: Call) -> int:
    """In a worker thread: the tokens of a prompt."""
    offered = chat.tools if chat.tool_choice != "none" else None
    task = conversation.chat_of(service, chat, offered, conversation.switches_of(chat))
    if service.template is None:
        raise ModelError("The model has no chat template.")
    return len(service.request_factory.encode(service.template.ask(task), call.still_wanted))


def model_object(service: Service, name: str) -> Json:
    """A model, in Anthropic's form."""
    created = datetime.fromtimestamp(service.created, UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "max_input_tokens": service.model_len_max,
        "max_tokens": service.model_len_max,
    }


def models_object(service: Service) -> Json:
    """All models, in Anthropic's form: one page has them all."""
    names = service.settings.served_model_name
    return {
        "data": [model_object(service, name) for name in names],
        "has_more": False,
        "first_id": names[0],
        "last_id": names[-1],
    }
