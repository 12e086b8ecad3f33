"""Routes for monitoring programs: `/metrics`, `/stats`, and `/slots` in llama-server's form.

Event loop; callers need a key. Metrics and statistics are of the whole server. `/slots` has as many
rows as sequences may run at once. Each has the number of a slot of the backend's memory, which has
a few more slots for cached prefixes. Requests of others have numbers and no name. Fields of
llama-server that are not known here are left out; `jitney` holds fields that it does not have.

Tests: tests/e2e/server/test_inspection.py.
"""

from dataclasses import fields
from itertools import islice

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from jitney.core.request import RequestId
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.core.snapshot import Detail, SlotState, SlotView
from jitney.engine.stats import Stats
from jitney.server.error_object import Refusal
from jitney.server.http.shared_value import SharedValue
from jitney.server.observe.metrics import CONTENT_TYPE
from jitney.server.observe.monitor import Monitor
from jitney.server.observe.recorder import Recorder, Viewer
from jitney.server.page.page_routes import LIVE, viewer_of
from jitney.server.page.state import Fields, PageState, Value
from jitney.server.service import Service

NOBODY = -1
"""In llama-server's numbers: no task, and no limit."""


def make_router(service: Service, monitor: Monitor, state: PageState) -> APIRouter:
    """`/metrics`, `/stats` and `/slots`."""
    router = APIRouter()
    rendered = SharedValue(monitor.metrics.render)

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """All metrics, in Prometheus' format."""
        return Response(await rendered.get(), media_type=CONTENT_TYPE)

    @router.get("/stats")
    async def stats() -> Response:
        """Counters and averages since the start, and the state of the engine."""
        return JSONResponse(stats_fields(service.engine.stats()), headers=LIVE)

    @router.get("/slots")
    async def slots(request: Request, fail_on_no_slot: bool = False) -> Response:
        """Which request runs in which slot, in llama-server's form."""
        if fail_on_no_slot and service.engine.stats().idle_slots <= 0:
            raise Refusal("no_slot", "Every slot is taken.", headers=LIVE)
        detail = await state.look()
        if detail is None:
            raise Refusal(
                "no_answer",
                "The engine has not reported its slots yet; it may be stuck in a forward pass: "
                "see /health, and try again later.",
                headers=LIVE,
            )
        table = SlotTable(viewer_of(service, request), service.engine.settings, monitor.recorder)
        content = await state.in_turn(lambda: table.rows(detail))
        seen_ms = (monitor.clock.now() - detail.at) * 1e3
        headers = {**LIVE, "x-jitney-seen-ms": f"{seen_ms:.0f}"}
        return Response(content, media_type="application/json", headers=headers)

    return router


def stats_fields(stats: Stats) -> dict[str, object]:
    """All statistics by their names."""
    named: dict[str, object] = {each.name: getattr(stats, each.name) for each in fields(stats)}
    # JSON needs a plain dict.
    return {**named, "counters": dict(stats.counters)}


class SlotTable:
    """Makes the rows for one viewer."""

    def __init__(self, viewer: Viewer, settings: SchedulerSettings, recorder: Recorder) -> None:
        self._viewer = viewer
        self._settings = settings
        self._recorder = recorder

    def rows(self, detail: Detail) -> list[Value]:
        """One row for each slot that runs or could run, by number."""
        views = {view.slot: view for view in detail.slots}
        running = {slot for slot, view in views.items() if view.state is not SlotState.CACHED}
        slot_count = self._settings.max_num_seqs
        idle = (slot for slot in range(slot_count) if slot not in running)
        shown = sorted([*running, *islice(idle, max(0, slot_count - len(running)))])
        return [self._row(slot, views.get(slot)) for slot in shown]

    def _row(self, slot: int, view: SlotView | None) -> Fields:
        is_running = view is not None and view.state is not SlotState.CACHED
        row: Fields = {
            "id": slot,
            "id_task": NOBODY,
            "n_ctx": self._settings.model_len_max,
            "speculative": False,
            "is_processing": is_running,
            "jitney": {
                "state": "idle" if view is None else view.state.value,
                "tokens": 0 if view is None else view.token_count,
            },
        }
        if view is not None and view.request_id is not None:
            row |= self._of_request(view, view.request_id)
        return row

    def _of_request(self, view: SlotView, request_id: RequestId) -> Fields:
        story = self._recorder.find(request_id)
        fields: Fields = {"id_task": request_id if self._viewer.may_read(story) else None}
        if story is None:
            return fields
        prompt, cached = story.accepted.prompt_tokens, story.cached_tokens
        limit = NOBODY if story.accepted.max_tokens is None else story.accepted.max_tokens
        made = max(0, view.token_count + 1 - prompt)
        return fields | {
            "n_prompt_tokens": prompt,
            "n_prompt_tokens_processed": max(0, min(view.token_count, prompt) - cached),
            "n_prompt_tokens_cache": cached,
            "params": {"n_predict": limit, "max_tokens": limit},
            "next_token": [
                {
                    "has_next_token": True,
                    "n_remain": NOBODY if limit == NOBODY else max(0, limit - made),
                    "n_decoded": made,
                }
            ],
        }
