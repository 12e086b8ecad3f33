"""Pause, resume and reprioritise a call that is being answered, by the id of its reply. Event loop.

Each caller can steer only its own calls; without keys, everyone is one caller. A change takes
effect between two ticks, and a pause is answered then: the engine knows whether there is room.

Tests: tests/e2e/server/test_steering.py.
"""

import asyncio
import re

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response

from jitney.core.limits import PAUSE_S_MAX
from jitney.core.request import Priority, Share
from jitney.core.rules.pauses import PauseOutcome
from jitney.core.rules.shares import paused_max
from jitney.errors import Draining, InvalidRequest
from jitney.server import limits
from jitney.server.admission.calls import Call, Handles
from jitney.server.error_object import Refusal, retry_headers
from jitney.server.openai.translate import allowed_priority
from jitney.server.service import Service

PRIORITY_CHARACTERS_MAX = 16
_NUMBER = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_NOT_FOUND = "No call with this id is being answered; use the id of a reply that has not ended."
_REFUSED = (PauseOutcome.TOO_MANY, PauseOutcome.TOO_LONG, PauseOutcome.NOT_NOW)


def make_router(service: Service) -> APIRouter:
    """The endpoints that steer a live call."""
    router = APIRouter()

    @router.post("/v1/requests/{reply_id}/pause")
    async def pause(request: Request, reply_id: str) -> Response:
        """Let a call do nothing until it is resumed."""
        handles = _find(service, request, reply_id)
        if service.admission.is_draining:
            raise Draining("The server is shutting down and pauses no more calls.")
        await _pause(handles, service.engine.settings.max_num_queued_reqs)
        return _status(reply_id, "pausing")

    @router.post("/v1/requests/{reply_id}/resume")
    async def resume(request: Request, reply_id: str) -> Response:
        """Let a paused call go on."""
        for handle in _find(service, request, reply_id):
            handle.resume()
        return _status(reply_id, "resuming")

    @router.post("/v1/requests/{reply_id}/priority")
    async def reprioritise(
        request: Request, reply_id: str, priority: str = Query(max_length=PRIORITY_CHARACTERS_MAX)
    ) -> Response:
        """Put a call into another class: by its name, or by a number as in the field `priority`."""
        value = int(priority) if _NUMBER.fullmatch(priority) else priority
        if isinstance(value, str) and value.upper() not in Priority.__members__:
            raise InvalidRequest(
                "priority must be low, normal, high or critical, or a whole number.", "priority"
            )
        chosen = allowed_priority(service, value, Call.of(request.scope).caller.key)
        if not service.engine.settings.uses_priorities:
            raise InvalidRequest(
                "priority has no effect here: the policy of the server does not look at it.",
                "priority",
            )
        for handle in _find(service, request, reply_id):
            handle.reprioritise(chosen)
        return _status(reply_id, chosen.name.lower())

    return router


def _find(service: Service, request: Request, reply_id: str) -> Handles:
    """The live requests of this call. This counts as a request of the caller."""
    caller = Call.of(request.scope).caller
    caller.enter()
    found = service.live_calls.find(caller.name, reply_id)
    if not found:
        raise Refusal("request_not_found", _NOT_FOUND)
    return found


async def _pause(handles: Handles, waiting_max: int) -> None:
    """Pause all requests of a call, or none of them. The engine decides, between two ticks.

    Raises Refusal.
    """
    pauses = [asyncio.wrap_future(handle.pause()) for handle in handles]
    _, late = await asyncio.wait(pauses, timeout=limits.ACCEPT_S_MAX)
    if late:
        raise Refusal(
            "no_answer",
            "The engine has not said whether the call is paused; it may be stuck in a forward "
            "pass: see /health, and try again later.",
        )
    outcomes = [each.result() for each in pauses]
    if all(each is PauseOutcome.ENDED for each in outcomes):
        raise Refusal("request_not_found", _NOT_FOUND)
    refused = [each for each in outcomes if each in _REFUSED]
    if not refused:
        return
    for handle, outcome in zip(handles, outcomes, strict=True):
        if outcome is PauseOutcome.PAUSED:
            handle.resume()
    raise _refusal(refused[0], handles[0].request.share, waiting_max)


def _refusal(outcome: PauseOutcome, share: Share | None, waiting_max: int) -> Refusal:
    if outcome is PauseOutcome.TOO_LONG:
        message = f"This call was paused for {PAUSE_S_MAX:g} s in all, as long as it may be."
        return Refusal("invalid_value", message)
    if outcome is PauseOutcome.NOT_NOW:
        message = "The engine of this call is ending, or has not taken it yet; try again later."
        return Refusal("unavailable", message, headers=retry_headers(1.0))
    own = "" if share is None else f", and {paused_max(share.waiting_max)} of one key"
    message = (
        f"This call is not paused: {paused_max(waiting_max)} completions may be at once{own}; "
        "resume another call, or try again later."
    )
    return Refusal("too_many_paused", message, headers=retry_headers(1.0))


def _status(reply_id: str, state: str) -> Response:
    return JSONResponse({"id": reply_id, "object": "request", "status": state})
