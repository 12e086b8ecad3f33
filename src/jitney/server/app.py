"""Puts the application together: `create_app`. Called once at start-up, before the event loop."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from jitney.errors import JitneyError
from jitney.server.admission import steering
from jitney.server.http.middleware import Front, Guard, answer, error_headers, told
from jitney.server.http.origins import EXPOSED, METHODS, Preflight
from jitney.server.http.shared import Shared
from jitney.server.observe.metrics import CONTENT_TYPE
from jitney.server.observe.monitor import Monitor
from jitney.server.openai.error_object import Refusal
from jitney.server.openai.replies import VERSION
from jitney.server.page import inspection
from jitney.server.page import page_routes as page
from jitney.server.page.state import PageState
from jitney.server.routes import (
    BODIES,
    STATE_PATHS,
    make_router,
    make_state_router,
    not_found,
)
from jitney.server.service import Service

REFERENCE = "#/components/schemas/{model}"


def create_app(
    service: Service, monitor: Monitor | None = None, routers: Sequence[APIRouter] = ()
) -> FastAPI:
    """The application over one service; with a monitor, its metrics and its page as well.

    `routers` are those of parts that this one does not know.
    """
    app = FastAPI(
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
    own = (make_state_router(service), make_router(service), steering.make_router(service))
    watched = [] if monitor is None else _watching_routers(service, monitor)
    for router in (*own, *watched, *routers):
        app.include_router(router)
    if monitor is not None:
        monitor.metrics.attach(service)
    document = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _with_bodies(document())
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]
    open_paths = STATE_PATHS | (page.OPEN_PATHS if monitor is not None else frozenset())
    app.add_middleware(Guard, service=service, open_paths=open_paths)
    origins = service.settings.cors_origin
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(origins),
            allow_methods=METHODS,
            expose_headers=EXPOSED,
        )
        app.add_middleware(Preflight, origins=origins)
    app.add_middleware(Front, service=service)
    return app


def _watching_routers(service: Service, monitor: Monitor) -> list[APIRouter]:
    state = PageState(service, monitor)
    return [
        _metrics_router(monitor),
        inspection.make_router(service, monitor, state),
        page.make_router(service, monitor, state),
    ]


def _metrics_router(monitor: Monitor) -> APIRouter:
    router = APIRouter()
    rendered = Shared(monitor.metrics.render)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Everything that is counted, in Prometheus' format."""
        return Response(await rendered.get(), media_type=CONTENT_TYPE)

    return router


async def _refused(request: Request, error: Exception) -> Response:
    refusal = told(error, request.state.http_id)
    return _Answer(refusal)


async def _http_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        refusal = not_found(request.url.path)
    elif error.status_code == 405:
        refusal = _wrong_method((error.headers or {}).get("Allow", ""))
    else:
        refusal = Refusal("invalid_http", "The request cannot be served.")
        refusal.status = error.status_code
    refusal.headers.update(error_headers(error.headers))
    return _Answer(refusal)


def _wrong_method(allowed: str) -> Refusal:
    """`allowed` is what the framework lists: a set, so in any order."""
    methods = " or ".join(sorted(allowed.split(", ")))
    return Refusal("method_not_allowed", f"This path takes {methods} only.")


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()[0]
    name = str(found["loc"][-1])[:80]
    return _Answer(Refusal("invalid_value", f"{name}: {found['msg']}.", param=name))


class _Answer(JSONResponse):
    """An error as a response; a subclass, because that is what the framework takes for one."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.body, refusal.status, headers=refusal.headers)
        self._refusal = refusal

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # Any: as ASGI has it
        await answer(self._refusal, scope, receive, send)


def _with_bodies(document: dict[str, Any]) -> dict[str, Any]:
    """Bodies are read here and not by the framework, so they are described here as well."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for kind in BODIES:
        described = kind.model_json_schema(ref_template=REFERENCE)
        schemas.update(described.pop("$defs", {}))
        schemas[kind.__name__] = described
    detail = {
        "type": "object",
        "required": ["message", "type", "param", "code"],
        "properties": {
            "message": {"type": "string"},
            "type": {"type": "string"},
            "param": {"type": ["string", "null"]},
            "code": {"type": ["string", "null"]},
        },
    }
    schemas["Error"] = {
        "type": "object",
        "required": ["error"],
        "properties": {"error": detail},
    }
    return document
