"""The endpoints, one short function each. Event loop."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from jitney.engine.request_factory import Wanted
from jitney.errors import InvalidRequest
from jitney.server import limits
from jitney.server.admission.workers import Stay
from jitney.server.answering import Answering
from jitney.server.http.paths import instead_of
from jitney.server.openai.bodies import CompletionBody, DetokenizeBody, SamplingFields, Strict
from jitney.server.openai.chat_body import ChatBody, TokenizeBody
from jitney.server.openai.conversation import chat_segments
from jitney.server.openai.error_object import Refusal
from jitney.server.openai.read_body import read_body
from jitney.server.openai.replies import VERSION, ChatChoices, CompletionChoices, Reply
from jitney.server.openai.translate import (
    Asked,
    Visit,
    chat_asked,
    check_model,
    completion_asked,
    decode,
)
from jitney.server.service import Health, Service

_ERROR: dict[str, Any] = {
    "description": "What went wrong, in OpenAI's shape.",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
BODIES: tuple[type[Strict], ...] = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)
"""Described in the OpenAPI document."""

STATE_PATHS = frozenset({"/health", "/ready"})
"""Paths that need no key: those who ask whether to send work here, or to start it again, have
none. They tell how the server is and why, in sentences of ours, and nothing of who calls."""


def taking(kind: type[Strict], *, streams: bool = False) -> dict[str, Any]:
    """How the OpenAPI document describes an endpoint with this body."""
    schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
    replies: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        replies["text/event-stream"] = {}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {"description": "The reply.", "content": replies},
            "4XX": _ERROR,
            "5XX": _ERROR,
        },
    }


def make_router(service: Service) -> APIRouter:
    """All endpoints of the OpenAI interface."""
    router = APIRouter()
    bytes_max = service.body_limit

    @router.post("/v1/completions", openapi_extra=taking(CompletionBody, streams=True))
    async def completions(request: Request) -> Response:
        """Complete a prompt, or several."""
        body = await read_body(request, CompletionBody, bytes_max)
        check_model(service, body.model)
        visit = _visit(request, body)
        make = partial(completion_asked, service, body, visit)
        asked = await service.at_the_door(make, visit.stay, request.receive, visit.due_at)
        return await _answered(service, request, asked, _reply(service, asked, CompletionChoices))

    @router.post("/v1/chat/completions", openapi_extra=taking(ChatBody, streams=True))
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(request, ChatBody, bytes_max)
        check_model(service, body.model)
        visit = _visit(request, body)
        make = partial(chat_asked, service, body, visit)
        asked = await service.at_the_door(make, visit.stay, request.receive, visit.due_at)
        return await _answered(service, request, asked, _reply(service, asked, ChatChoices))

    @router.post("/tokenize", openapi_extra=taking(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """The tokens of a prompt or of a conversation."""
        body = await read_body(request, TokenizeBody, bytes_max)
        check_model(service, body.model)
        stay = _stay(request)
        make = partial(_tokens_of, service, body, stay.waits)
        tokens = await service.at_the_door(make, stay, request.receive)
        return JSONResponse(
            {
                "tokens": list(tokens),
                "count": len(tokens),
                "max_model_len": service.model_len_max,
            }
        )

    @router.post("/detokenize", openapi_extra=taking(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        body = await read_body(request, DetokenizeBody, bytes_max)
        check_model(service, body.model)
        count = len(service.vocabulary.pieces)
        strange = next((token for token in body.tokens if token >= count), None)
        if strange is not None:
            raise InvalidRequest(
                f"tokens has {strange}, and the model's tokens are 0 to {count - 1}.", "tokens"
            )
        stay = _stay(request)
        make = partial(decode, service, tuple(body.tokens), stay.waits)
        text = await service.at_the_door(make, stay, request.receive)
        return JSONResponse({"prompt": text})

    return router


def make_state_router(service: Service) -> APIRouter:
    """Endpoints that say how the server is and what it serves."""
    router = APIRouter()

    @router.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> Response:
        """Whether work gets done; needs no key."""
        return _told(service.health())

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready() -> Response:
        """Whether new work is welcome; needs no key."""
        return _told(service.readiness())

    @router.get("/version")
    async def version() -> dict[str, str]:
        """Of the software."""
        return {"version": VERSION}

    @router.get("/load")
    async def load() -> dict[str, int]:
        """Requests that are being served."""
        return {"server_load": service.load}

    @router.get("/v1/models")
    async def models() -> dict[str, Any]:
        """What is served here."""
        names = service.settings.served_model_name
        return {"object": "list", "data": [_model(service, name) for name in names]}

    @router.get("/v1/models/{name:path}", openapi_extra={"responses": {"4XX": _ERROR}})
    async def model(name: str) -> dict[str, Any]:
        """One of the models."""
        check_model(service, name)
        return _model(service, name)

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, Any]:
        """What clients that tokenise over HTTP want to know."""
        vocabulary = service.vocabulary
        ends = vocabulary.eos_tokens
        return {
            "model": service.model_name,
            "vocab_size": len(vocabulary.pieces),
            "model_max_length": service.model_len_max,
            "add_bos_token": vocabulary.adds_bos,
            "bos_token": _name(service, vocabulary.bos_token),
            "bos_token_id": vocabulary.bos_token,
            "eos_token": _name(service, ends[0] if ends else None),
            "eos_token_id": ends[0] if ends else None,
            "eos_token_ids": list(ends),
            "chat_template": vocabulary.chat_template,
        }

    return router


def _visit(request: Request, body: SamplingFields) -> Visit:
    """Who asks, with a time limit that counts from arrival; its own word goes to the log."""
    state = request.state
    state.user = body.user
    limit_ms, arrived_at = body.deadline_ms, state.arrived_at
    due_at = None if limit_ms is None else arrived_at + limit_ms / 1e3
    return Visit(state.caller, arrived_at, due_at, _stay(request, is_slow=_is_compiled(body)))


def _stay(request: Request, *, is_slow: bool = False) -> Stay:
    """Who comes to the door, and whether with much; what does not say how much is taken for it."""
    length = request.headers.get("content-length", "")
    is_small = length.isdecimal() and int(length[:20]) <= limits.DOOR_SMALL_BYTES
    return Stay(request.state.caller.name, is_large=is_slow or not is_small)


def _is_compiled(body: SamplingFields) -> bool:
    """Whether it may hold a constraint, which takes up to seconds however short it is."""
    given = body.model_fields_set
    return bool(given & {"response_format", "tools", "structured_outputs"})


async def _answered(service: Service, request: Request, asked: Asked, reply: Reply) -> Response:
    state = request.state
    answering = Answering(service, asked, reply, state.caller, state.http_id)
    # For the line in the log.
    state.reply_id, state.usages = asked.id, answering.usages
    if not asked.streams:
        return await answering.whole(request.receive)
    stream = answering.stream()
    await stream.open(request.receive)
    return stream


def _tokens_of(service: Service, body: TokenizeBody, is_wanted: Wanted) -> tuple[int, ...]:
    request_factory = service.request_factory
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("tokenize takes a prompt or messages, one of the two.", "prompt")
    if body.messages is not None:
        if body.add_special_tokens is not None:
            raise InvalidRequest(
                "add_special_tokens goes with a prompt: of a conversation, the chat template "
                "decides which there are.",
                "add_special_tokens",
            )
        return request_factory.encode(chat_segments(service, body, body.tools), is_wanted)
    assert body.prompt is not None
    of_messages = (body.tools, body.add_generation_prompt, body.continue_final_message)
    if any(each is not None for each in of_messages):
        raise InvalidRequest(
            "tools, add_generation_prompt and continue_final_message go with messages.", "prompt"
        )
    tokens = request_factory.encode_text(body.prompt, is_wanted)
    bos_token = service.vocabulary.bos_token
    is_bare = body.add_special_tokens is False
    if is_bare and service.vocabulary.adds_bos and tokens[:1] == (bos_token,):
        return tokens[1:]
    return tokens


def _told(health: Health) -> Response:
    body: Mapping[str, str] = {"status": health.status}
    if health.reason is not None:
        body = {**body, "reason": health.reason}
    return JSONResponse(body, 200 if health.is_ok else 503)


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "jitney",
        "max_model_len": service.model_len_max,
    }


def _reply(
    service: Service, asked: Asked, kind: type[CompletionChoices] | type[ChatChoices]
) -> Reply:
    traits = service.engine.backend.traits
    return Reply(asked, service.vocabulary, kind, batch_invariant=traits.batch_invariant)


def _name(service: Service, token: int | None) -> str | None:
    if token is None:
        return None
    return service.vocabulary.pieces[token].decode("utf-8", errors="replace")


def not_found(path: str) -> Refusal:
    """The answer to a path that leads nowhere; it says which one does, where that is known."""
    instead = instead_of(path) or "/openapi.json lists those there are"
    return Refusal("not_found", f"There is nothing at this path; {instead}.")
