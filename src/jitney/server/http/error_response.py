"""From any exception to a response: `refusal_for`, `ErrorResponse`. Event loop.

Tests: tests/unit/server/test_error_object.py and tests/e2e/server/test_rows_http.py.
"""

import logging
import uuid

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from jitney.errors import JitneyError, NoRoom
from jitney.server.admission.calls import Call
from jitney.server.error_object import Refusal, refusal_of

_log = logging.getLogger("jitney.server")


def refusal_for(error: Exception, http_id: str) -> Refusal:
    """The refusal for any exception. A message that the caller does not get is logged, once."""
    if isinstance(error, Refusal):
        return error
    if _is_out_of_memory(error):
        error = NoRoom("The system gave no memory for it.")
    if isinstance(error, JitneyError):
        refusal = refusal_of(error)
        if refusal.log_message is not None:
            _log.warning("%s: %s", http_id, refusal.log_message)
        return refusal
    reference = uuid.uuid4().hex[:12]
    _log.error("%s: unexpected, reference %s", http_id, reference, exc_info=error)
    message = f"Something unexpected happened on our side; its reference is {reference}."
    return Refusal("internal_error", message)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether the system refused memory: for a value, or for the stack of a thread.

    Python has no class for the second error, so its text is compared.
    """
    is_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
    return isinstance(error, MemoryError) or is_thread


class ErrorResponse(JSONResponse):
    """A refusal as a response. It writes its reason into the call."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.body, refusal.status, headers=refusal.headers)
        self._reason = refusal.reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        Call.of(scope).refused = self._reason
        await super().__call__(scope, receive, send)
