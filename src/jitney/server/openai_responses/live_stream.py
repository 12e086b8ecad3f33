"""A stream of events of a response that is being answered for its caller: `LiveStream`. Event loop.

Tests: tests/e2e/openai_responses/test_protocol.py.
"""

from collections.abc import Awaitable, Callable

from jitney.server.openai_responses.response_form import ResponseForm
from jitney.server.responses import EventStream


class LiveStream(EventStream):
    """Tells at once that the response is there: its first token may take long."""

    async def _run(self, send_body: Callable[[bytes], Awaitable[None]]) -> bytes:
        form = self._generation.reply
        assert isinstance(form, ResponseForm), "it was prepared as a response"
        # What came before the headers begins with it.
        if not self._turn.done() and (opening := form.opening()):
            await send_body(opening)
        return await super()._run(send_body)
