"""A stream of events of a response that is being answered for its caller: `LiveStream`. Event loop.

Tests: tests/e2e/openai_responses/test_protocol.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from jitney.server.answer_call import Generation
from jitney.server.openai_responses.response_form import ResponseForm
from jitney.server.responses import EventStream

Keep = Callable[[ResponseForm], Awaitable[bool]]
"""Keeps a response that has ended; whether that was done."""


class LiveStream(EventStream):
    """Tells at once that the response is there: its first token may take long. One that is to be
    kept is in the store before its last event."""

    def __init__(self, generation: Generation, keep: Keep) -> None:
        super().__init__(generation)
        self._keep = keep
        assert isinstance(generation.reply, ResponseForm), "it was prepared as a response"
        self._form = generation.reply

    async def _run(self, send_body: Callable[[bytes], Awaitable[None]]) -> bytes:
        # What came before the headers begins with it.
        if not self._turn.done() and (opening := self._form.opening()):
            await send_body(opening)
        return await super()._run(send_body)

    async def _closing(self) -> bytes:
        form, usages = self._form, self._generation.usages()
        form.settle(usages)
        if form.state.is_stored:
            form.state.is_stored = await self._keep(form)
        close = partial(form.closing, usages)
        # The bytes are there, but a long answer has many, and each four times.
        return await asyncio.to_thread(close) if self._generation.is_large else close()
