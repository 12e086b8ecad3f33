"""The endpoints, one short function each. Event loop.

Tests: tests/e2e/server/test_service.py.
"""

from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from jitney.errors import InvalidRequest
from jitney.server.admission.calls import Call
from jitney.server.answer_call import prepare, run_work
from jitney.server.anthropic.message_routes import model_object, models_object
from jitney.server.error_object import Error
from jitney.server.http.body_reader import unless_left
from jitney.server.openai.bodies import CompletionBody, DetokenizeBody, Strict
from jitney.server.openai.chat_body import ChatBody, TokenizeBody
from jitney.server.openai.check_body import check_body
from jitney.server.openai.conversation import chat_of
from jitney.server.openai.replies import VERSION
from jitney.server.openai.translate import check_model, decode
from jitney.server.responses import respond
from jitney.server.service import Health, Service

Body = TypeVar("Body", CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)

BODIES: tuple[type[Strict], ...] = (CompletionBody, ChatBody, TokenizeBody, DetokenizeBody)
"""Described in the OpenAPI document."""

STATE_PATHS = frozenset({"/health", "/ready"})
"""Paths that need no key: load balancers and service managers have none. They return the status
and a fixed sentence, and nothing about callers."""

_VERSION_HEADER = "anthropic-version"
"""Anthropic's clients send it with every call."""

REFERENCE = "#/components/schemas/{model}"

_ERROR: dict[str, Any] = {"model": Error, "description": "What went wrong, in OpenAI's shape."}


def describe_body(kind: type[Strict], *, streams: bool = False) -> dict[str, Any]:
    """How the OpenAPI document describes an endpoint with this body."""
    schema = {"$ref": REFERENCE.format(model=kind.__name__)}
    replies: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        replies["text/event-stream"] = {}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {
        "openapi_extra": {"requestBody": body},
        "responses": {
            200: {"description": "The reply.", "content": replies},
            "4XX": _ERROR,
            "5XX": _ERROR,
        },
    }


def make_router(service: Service) -> APIRouter:
    """All endpoints of the OpenAI interface."""
    router = APIRouter()

    @router.post("/v1/completions", **describe_body(CompletionBody, streams=True))
    async def completions(request: Request) -> Response:
        """Complete a prompt, or several."""
        return await _complete(service, request, await _read(service, request, CompletionBody))

    @router.post("/v1/chat/completions", **describe_body(ChatBody, streams=True))
    async def chat(request: Request) -> Response:
        """Answer a conversation."""
        return await _complete(service, request, await _read(service, request, ChatBody))

    @router.post("/tokenize", **describe_body(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        """The tokens of a prompt or of a conversation."""
        body = await _read(service, request, TokenizeBody)
        call = Call.of(request.scope)
        work = run_work(service, call, partial(_tokens_of, service, body, call))
        tokens = await unless_left(work, request)
        return JSONResponse(
            {
                "tokens": list(tokens),
                "count": len(tokens),
                "max_model_len": service.model_len_max,
            }
        )

    @router.post("/detokenize", **describe_body(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        """The text of tokens."""
        body = await _read(service, request, DetokenizeBody)
        call = Call.of(request.scope)
        work = run_work(service, call, partial(_text_of, service, body, call))
        return JSONResponse({"prompt": await unless_left(work, request)})

    return router


def make_state_router(service: Service) -> APIRouter:
    """Endpoints about the status of the server and its models."""
    router = APIRouter()

    @router.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> Response:
        """Whether work gets done; needs no key."""
        return _state(service.health())

    @router.head("/ready", include_in_schema=False)
    @router.get("/ready")
    async def ready() -> Response:
        """Whether new work is welcome; needs no key."""
        return _state(service.readiness())

    @router.get("/version")
    async def version() -> dict[str, str]:
        """Of the software."""
        return {"version": VERSION}

    @router.get("/load")
    async def load() -> dict[str, int]:
        """Requests that are being served."""
        return {"server_load": service.admission.call_count}

    @router.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        """What is served here; in Anthropic's form where the call has `anthropic-version`."""
        if _VERSION_HEADER in request.headers:
            return models_object(service)
        names = service.settings.served_model_name
        return {"object": "list", "data": [_model(service, name) for name in names]}

    @router.get("/v1/models/{name:path}", responses={"4XX": _ERROR})
    async def model(request: Request, name: str) -> dict[str, Any]:
        """One of the models."""
        check_model(service, name)
        if _VERSION_HEADER in request.headers:
            return model_object(service, name)
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
            "bos_token": vocabulary.text(vocabulary.bos_token),
            "bos_token_id": vocabulary.bos_token,
            "eos_token": vocabulary.text(ends[0] if ends else None),
            "eos_token_id": ends[0] if ends else None,
            "eos_token_ids": list(ends),
            "chat_template": vocabulary.chat_template,
        }

    return router


async def _read(service: Service, request: Request, kind: type[Body]) -> Body:
    ignored = None if service.settings.strict else Call.of(request.scope).ignored
    check = partial(check_body, kind=kind, values_max=service.values_max, ignored=ignored)
    body: Body = await service.bodies.read(request, check)
    check_model(service, body.model)
    return body


async def _complete(
    service: Service, request: Request, body: CompletionBody | ChatBody
) -> Response:
    return await respond(prepare(service, body, Call.of(request.scope)), request)


def _tokens_of(service: Service, body: TokenizeBody, call: Call) -> tuple[int, ...]:
    request_factory = service.request_factory
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("/tokenize takes either a prompt or messages.", "prompt")
    if body.messages is not None:
        if body.add_special_tokens is not None:
            raise InvalidRequest(
                "add_special_tokens needs a prompt: in a conversation, the chat template decides "
                "which special tokens there are.",
                "add_special_tokens",
            )
        chat = chat_of(service, body, body.tools)
        assert service.template is not None, "There is one, or there would be no chat"
        return request_factory.encode(service.template.ask(chat), call.still_wanted)
    assert body.prompt is not None
    of_messages = (body.tools, body.add_generation_prompt, body.continue_final_message)
    if any(each is not None for each in of_messages):
        raise InvalidRequest(
            "tools, add_generation_prompt and continue_final_message go with messages.", "prompt"
        )
    tokens = request_factory.encode_text(body.prompt, call.still_wanted)
    bos_token = service.vocabulary.bos_token
    is_bare = body.add_special_tokens is False
    if is_bare and service.vocabulary.adds_bos and tokens[:1] == (bos_token,):
        return tokens[1:]
    return tokens


def _text_of(service: Service, body: DetokenizeBody, call: Call) -> str:
    count = len(service.vocabulary.pieces)
    strange = next((token for token in body.tokens if token >= count), None)
    if strange is not None:
        raise InvalidRequest(
            f"tokens has {strange}, and the model's tokens are 0 to {count - 1}.", "tokens"
        )
    return decode(service, tuple(body.tokens), call.still_wanted)


def _state(health: Health) -> Response:
    body = {"status": health.status}
    if health.reason is not None:
        body["reason"] = health.reason
    return JSONResponse(body, 200 if health.is_ok else 503)


def _model(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "jitney",
        "max_model_len": service.model_len_max,
    }
