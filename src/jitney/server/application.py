"""The whole HTTP application over an engine: the server, its metrics, files and batches.

`Application` is made before the event loop, on the main thread. `jitney serve` puts a socket in
front of it, and `jitney_cluster` the proxies of Ray Serve. `create_app` puts the routes together.

Tests: tests/unit/cli/test_serve.py, tests/e2e/server/test_service.py and test_rows_http.py.
"""

import logging
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from jitney.config import Key, ServeSettings, check_distinct, environment, load_keys
from jitney.config.machine import is_local, jobs_folder
from jitney.errors import ConfigError, JitneyError
from jitney.server import steering
from jitney.server.admission.calls import Call
from jitney.server.anthropic.message_errors import PATH as MESSAGES_PATH
from jitney.server.anthropic.message_routes import BODIES as MESSAGES_BODIES
from jitney.server.anthropic.message_routes import make_router as make_messages_router
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.answer_line import LineAnswerer
from jitney.server.batches.batch_routes import make_batch_router, make_file_router
from jitney.server.batches.batches import Batches
from jitney.server.batches.database import DiskError, StoreTaken
from jitney.server.batches.message_batch_routes import (
    MessageBatchBody,
    make_message_batch_router,
)
from jitney.server.batches.stages import BatchBounds
from jitney.server.error_object import Refusal, refusal_for
from jitney.server.middleware import ANSWER_PATHS, AnswerRoutes, ErrorResponse, around
from jitney.server.observe.monitor import Monitor
from jitney.server.openai.bodies import Strict
from jitney.server.openai.replies import VERSION
from jitney.server.openai_responses.response_body import ResponseBody
from jitney.server.openai_responses.response_routes import make_response_router
from jitney.server.openai_responses.stored_responses import StoredResponses
from jitney.server.page import page_routes as page
from jitney.server.page.state import PageState
from jitney.server.routes import (
    BODIES,
    REFERENCE,
    STATE_PATHS,
    make_router,
    make_state_router,
)
from jitney.server.service import Loaded, Service

_log = logging.getLogger("jitney.server")

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")

SERVED = ("/v1/chat/completions", "/v1/completions", "/v1/models")

_NO_EMBEDDINGS = "this server makes text, and no embeddings"
_TEXT = "use /v1/completions"
_CHAT = "use /v1/chat/completions"
_MODELS = "use /v1/models"
_INSTEAD = {
    **{path: f"use {path}" for path in (*SERVED, "/tokenize", "/detokenize")},
    **{path.removeprefix("/v1"): f"use {path}" for path in SERVED},
    **{f"/v1{path}": f"use {path}" for path in SERVED},
    **{
        f"/v1{path}": f"use {path}"
        for path in ("/tokenize", "/detokenize", "/health", "/metrics", "/version")
    },
    "/v1": f"{_CHAT} or /v1/completions",
    "/completion": _TEXT,
    "/generate": _TEXT,
    "/generate_stream": _TEXT,
    "/api/generate": _TEXT,
    "/api/chat": _CHAT,
    "/responses": "use /v1/responses",
    "/messages": f"use {MESSAGES_PATH}",
    "/api/hello": f"use {MESSAGES_PATH}",
    "/api/tags": _MODELS,
    "/api/version": "use /version",
    "/ping": "use /health",
    "/metrics": "enable_metrics is false here",
    "/files": "use /v1/files",
    "/batches": "use /v1/batches",
    **dict.fromkeys(("/embedding", "/embeddings", "/v1/embeddings"), _NO_EMBEDDINGS),
    **dict.fromkeys(("/api/embed", "/api/embeddings"), _NO_EMBEDDINGS),
}
"""The hint for each path, without slashes at its end."""

_OF_JOBS = ("/v1/files/", "/v1/batches/", f"{MESSAGES_PATH}/batches/")


class Application:
    """The service, its routes, and the work that may wait. `close` comes last."""

    def __init__(
        self,
        loaded: Loaded,
        serving: ServeSettings,
        keys: tuple[Key, ...],
        *,
        waits_for_store: bool = False,
    ) -> None:
        """`waits_for_store`: a store that another server has is no mistake; it will be free."""
        settings = replace(
            serving,
            served_model_name=serving.served_model_name or (loaded.model_name,),
            allowed_host=allowed_hosts(serving, keys),
        )
        self.service = Service(
            loaded.engine, loaded.request_factory, loaded.template, settings, keys
        )
        self.service.own_name = loaded.model_name
        self.batches = None
        if serving.jobs_dir is not None:
            self.batches = open_batches(self.service, waits_for_store=waits_for_store)
        self.monitor = Monitor(
            loaded.engine, self.service.model_name, otlp_endpoint=serving.otlp_endpoint
        )
        self.app = create_app(self.service, self.monitor, self.batches)

    def start(self) -> None:
        """On the event loop: go on with the batches that are there."""
        if self.batches is not None:
            self.batches.start()

    async def stop(self) -> None:
        """On the event loop, where that goes on after `close`: run no more lines."""
        if self.batches is not None:
            await self.batches.stop()

    def close(self) -> None:
        """When the event loop has ended, or after `stop`."""
        if self.batches is not None:
            self.batches.close()
        self.monitor.close()


def open_batches(service: Service, *, waits_for_store: bool = False) -> Batches:
    """The work that may wait, with its store open if there is one. Raises ConfigError.

    Two servers of one user have the same folder by default. The second one does without, and so
    does one that cannot use that folder.
    """
    settings = service.settings
    assert settings.jobs_dir is not None, "There is a folder for them"
    bounds = BatchBounds(bytes_max=settings.jobs_disk_limit)
    allowances = Allowances(service.keys.known, service.clock)
    batches = Batches(
        settings.jobs_dir, LineAnswerer(service), bounds=bounds, allowances=allowances
    )
    batches.is_waiting = waits_for_store
    try:
        batches.open_if_there()
    except (ConfigError, OSError) as error:
        is_free_later = waits_for_store and isinstance(error, StoreTaken)
        if settings.jobs_dir != jobs_folder(environment()) and not is_free_later:
            raise
        _log.warning("%s Files and batches are refused here (--jobs-dir)", error)
    except DiskError as error:
        batches.is_waiting = True
        _log.warning("Files and batches wait for the disk: %s", error)
    return batches


def read_keys(serving: ServeSettings) -> tuple[Key, ...]:
    """All keys, from flags and from the file. Raises ConfigError."""
    plain = tuple(
        Key(name=f"key-{at}", secret=secret) for at, secret in enumerate(serving.api_key, 1)
    )
    keys = plain
    if serving.api_key_file is not None:
        keys = (*plain, *load_keys(serving.api_key_file, environment()))
    # Keys of flags are called key-1 and so on, and a key of the file may have that name too.
    check_distinct(keys, "--api-key and --api-key-file together have")
    return keys


def allowed_hosts(serving: ServeSettings, keys: tuple[Key, ...]) -> tuple[str, ...]:
    """The names that the Host header may have; an empty list allows all.

    A page in a browser can make its own name lead to this machine. So a server without keys, on a
    loopback address, accepts only the names of this machine.
    """
    names = tuple(name.lower() for name in serving.allowed_host)
    if keys or not is_local(serving.host):
        return names
    host = serving.host.lower()
    return tuple(dict.fromkeys((*LOCAL_HOSTS, f"[{host}]" if ":" in host else host, *names)))


class _App(FastAPI):
    """FastAPI's application. We read the bodies ourselves, so we also describe them here.

    For a short answer the framework's layers take as long as everything else in this process. So
    the endpoints that make tokens, `answers`, are called without them.
    """

    answers: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        is_answer = scope.get("path") in ANSWER_PATHS and scope["method"] == "POST"
        await (self.answers if is_answer else super().__call__)(scope, receive, send)

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        if self.openapi_schema is None:
            kinds: list[type[Strict]] = [*BODIES, *MESSAGES_BODIES, MessageBatchBody, ResponseBody]
            _, schemas = models_json_schema(
                [(kind, "validation") for kind in kinds], ref_template=REFERENCE
            )
            super().openapi()["components"]["schemas"].update(schemas["$defs"])
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_app(service: Service, monitor: Monitor, batches: Batches | None) -> FastAPI:
    """The application over one service: its routes, metrics and page, and batches if there are."""
    app = _App(
        title="jitney",
        version=VERSION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            Refusal: _refused,
            JitneyError: _refused,
            HTTPException: _http_refused,
            RequestValidationError: _invalid,
        },
    )
    state = PageState(service, monitor)
    stored = StoredResponses(service, batches)
    answers = (
        make_router(service),
        make_messages_router(service),
        make_response_router(service, stored),
    )
    routers = [
        make_state_router(service),
        *answers,
        steering.make_router(service),
        page.make_monitoring_router(service, monitor, state),
        page.make_page_router(service, monitor, state),
    ]
    monitor.metrics.attach(service)
    app.state.has_jobs = batches is not None
    if batches is not None:
        routers += [make_file_router(service, batches), make_batch_router(service, batches)]
        routers.append(make_message_batch_router(service, batches))
        monitor.metrics.attach_other(batches.collect)
        monitor.metrics.attach_other(stored.collect)
    for router in routers:
        app.include_router(router)
    layers = partial(around, service=service, open_paths=STATE_PATHS | page.OPEN_PATHS)
    app.add_middleware(layers)
    app.answers = layers(AnswerRoutes([route for each in answers for route in each.routes]))
    return app


async def _refused(request: Request, error: Exception) -> Response:
    return ErrorResponse(refusal_for(error, Call.of(request.scope).id))


async def _http_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        instead = instead_of(request.url.path) or "/openapi.json lists those there are"
        if not request.app.state.has_jobs and f"{request.url.path}/".startswith(_OF_JOBS):
            instead = "it needs a folder of jobs, and this server has none (--jobs-dir)"
        refusal = Refusal("not_found", f"There is nothing at this path; {instead}.")
    elif error.status_code == 405:
        # The framework's list has any order.
        allowed = " or ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
        refusal = Refusal("method_not_allowed", f"This path takes {allowed} only.")
    else:
        refusal = Refusal("http_error", "The request cannot be served.")
        refusal.status = error.status_code
    refusal.headers.update(error.headers or {})
    return ErrorResponse(refusal)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()[0]
    name = str(found["loc"][-1])[:80]
    return ErrorResponse(Refusal("invalid_value", f"{name}: {found['msg']}.", param=name))


def instead_of(path: str) -> str | None:
    """What to use instead of this path, as part of a sentence. It never repeats the path."""
    if path.startswith("/models/"):
        return f"{_MODELS}/NAME"
    return _INSTEAD.get(path.rstrip("/"))
