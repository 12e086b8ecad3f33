"""Puts the application together: `create_app`. Called once at start-up, before the event loop.

Tests: tests/e2e/server/test_service.py and test_rows_http.py.
"""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import Response

from jitney.errors import JitneyError
from jitney.server import steering
from jitney.server.call import Call
from jitney.server.error_object import Refusal
from jitney.server.http.cors import Cors
from jitney.server.http.error_response import ErrorResponse, refusal_for
from jitney.server.http.paths import instead_of
from jitney.server.middleware import AccessCheck, RequestContext
from jitney.server.observe.monitor import Monitor
from jitney.server.openai.replies import VERSION
from jitney.server.page import page_routes as page
from jitney.server.page.state import PageState
from jitney.server.routes import (
    BODIES,
    REFERENCE,
    STATE_PATHS,
    make_router,
    make_state_router,
)
from jitney.server.service import Service


class _App(FastAPI):
    """FastAPI's application. We read the bodies ourselves, so we also describe them here."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        if self.openapi_schema is None:
            _, schemas = models_json_schema(
                [(kind, "validation") for kind in BODIES], ref_template=REFERENCE
            )
            super().openapi()["components"]["schemas"].update(schemas["$defs"])
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_app(
    service: Service, monitor: Monitor | None = None, routers: Sequence[APIRouter] = ()
) -> FastAPI:
    """The application over one service; with a monitor, its metrics and its page as well.

    `routers` are endpoints of other parts.
    """
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
    own = [make_state_router(service), make_router(service), steering.make_router(service)]
    if monitor is not None:
        state = PageState(service, monitor)
        own.append(page.make_monitoring_router(service, monitor, state))
        own.append(page.make_page_router(service, monitor, state))
        monitor.metrics.attach(service)
    for router in (*own, *routers):
        app.include_router(router)
    open_paths = STATE_PATHS | (page.OPEN_PATHS if monitor is not None else frozenset())
    app.add_middleware(AccessCheck, service=service, open_paths=open_paths)
    if service.settings.cors_origin:
        app.add_middleware(Cors, origins=service.settings.cors_origin)
    app.add_middleware(RequestContext, service=service)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    return ErrorResponse(refusal_for(error, Call.of(request.scope).id))


async def _http_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        instead = instead_of(request.url.path) or "/openapi.json lists those there are"
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
