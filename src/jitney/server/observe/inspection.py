"""Routes for programs that watch: statistics and slots as JSON. Event loop.

Behind the keys. Statistics are of the whole server, as the metrics are; slots are told as the page
tells them, from a look that all viewers share.
"""

from dataclasses import fields

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from jitney.engine.stats import Stats
from jitney.server.openai.error_object import Refusal
from jitney.server.page.page_routes import LIVE, viewer_of
from jitney.server.page.state import PageState
from jitney.server.service import Service


def make_router(service: Service, state: PageState) -> APIRouter:
    """`/stats` and `/slots`."""
    router = APIRouter()

    @router.get("/stats")
    async def stats() -> Response:
        """Counters and averages since the start, and how the engine stands."""
        return JSONResponse(stats_fields(service.engine.stats()), headers=LIVE)

    @router.get("/slots")
    async def slots(request: Request, fail_on_no_slot: bool = False) -> Response:
        """Who runs in which slot, in llama-server's shape."""
        if fail_on_no_slot and service.engine.stats().idle_slots <= 0:
            raise Refusal("no_slot", "Every slot is taken.", headers=LIVE)
        told = await state.slots(viewer_of(service, request))
        if told is None:
            raise Refusal(
                "no_answer",
                "The engine has not said how its slots stand; it may be stuck in a forward pass: "
                "see /health, and try again later.",
                headers=LIVE,
            )
        headers = {**LIVE, "x-jitney-seen-ms": f"{told.seen_s_ago * 1e3:.0f}"}
        return Response(told.content, media_type="application/json", headers=headers)

    return router


def stats_fields(stats: Stats) -> dict[str, object]:
    """All statistics by their names."""
    told: dict[str, object] = {each.name: getattr(stats, each.name) for each in fields(stats)}
    # A view of a mapping is no JSON.
    return {**told, "counters": dict(stats.counters)}
