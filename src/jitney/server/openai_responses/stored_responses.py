"""Responses in the job store: `StoredResponses`. Event loop.

The store is that of files and batches, and is made by the first of any of them. Without a folder of
jobs nothing is kept, and what needs it is refused by name.

Tests: tests/e2e/openai_responses/test_stored.py and test_background.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from prometheus_client.core import Metric

from jitney.errors import Draining
from jitney.server.admission.calls import Call
from jitney.server.batches.batches import Batches
from jitney.server.batches.database import DiskError
from jitney.server.batches.store_calls import disk_refusals, open_store, query_store
from jitney.server.error_object import NO_RETRY, Refusal
from jitney.server.limits import INLINE_BYTES_MAX
from jitney.server.observe.prometheus_families import MetricTable, by, constants, families
from jitney.server.openai.chat_body import ChatBody
from jitney.server.openai.replies import Json
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.background_runner import BackgroundRunner
from jitney.server.openai_responses.earlier_items import EarlierItems
from jitney.server.openai_responses.event_feed import Watchers, feed
from jitney.server.openai_responses.event_replay import EventReplay
from jitney.server.openai_responses.item_events import response_of_item
from jitney.server.openai_responses.response_body import ReferenceItem, ResponseBody
from jitney.server.openai_responses.response_form import ResponseForm
from jitney.server.openai_responses.response_object import ResponseState
from jitney.server.openai_responses.response_table import ResponseTable, on_table
from jitney.server.openai_responses.stored_rows import (
    ENDED_WELL,
    UNREADABLE,
    Damaged,
    NewResponse,
    ResponseRows,
    StoredResponse,
    answered,
    object_bytes,
    response_of,
    rows_of,
)
from jitney.server.service import Service, now_s

T = TypeVar("T")

_log = logging.getLogger("jitney.server.responses")

_MISSING = ("response_not_found", "There is no response with this id.")


class StoredResponses:
    """What is kept, and what runs without a caller."""

    def __init__(self, service: Service, batches: Batches | None) -> None:
        self._service = service
        self._batches = batches
        self._watchers = Watchers()
        self.runner: BackgroundRunner | None = None
        if batches is not None:
            self.runner = BackgroundRunner(service, batches.thread, self._watchers)
            batches.beside.append(self.runner.run)

    def collect(self) -> Iterator[Metric]:
        """All metrics of stored responses. Any thread; numbers only."""
        if self.runner is None:
            return
        gauges: MetricTable = {
            "responses_running": (
                "Responses without a caller that run.",
                self.runner.running_count,
            ),
            "responses_waiting": ("Those that wait to run.", self.runner.waiting_count),
            "responses_streams": ("Streams of stored responses.", self._watchers.count),
            "responses_streams_bytes": (
                "What these streams hold, about.",
                self._watchers.room.held_bytes,
            ),
            "responses_streams_waiting": (
                "Streams that wait until others hold less.",
                self._watchers.room.waiting_count,
            ),
            "responses_limit": ("Every bound of responses.", by("limit", constants(limits))),
        }
        yield from families("gauge", gauges)

    async def check_kept(self, body: ResponseBody, call: Call) -> bool:
        """Whether the response to this body is kept. Raises Refusal where it has to be, and cannot
        be."""
        must_be = bool(body.background)
        if must_be and body.store is False:
            message = "A background response is stored; leave store out, or background."
            raise Refusal("invalid_value", message, param="background")
        if body.store is False:
            return False
        if self._batches is None:
            if must_be:
                raise _no_folder("background")
            self._ignore_store(body, call)
            return False
        try:
            await self._open(self._batches)
        except Refusal:
            if must_be or body.store:
                raise
            return False
        return True

    def _ignore_store(self, body: ResponseBody, call: Call) -> None:
        if body.store and self._service.settings.strict:
            raise _no_folder("store")
        if body.store:
            call.ignored.append("store")

    async def _open(self, batches: Batches) -> None:
        with disk_refusals():
            await open_store(batches)
        if batches.runner.is_full:
            message = (
                "The jobs take as much of the disk as they may; delete files or responses, or "
                "leave out store."
            )
            raise Refusal("storage_limit", message, param="store", headers=NO_RETRY)

    async def earlier(self, call: Call, body: ResponseBody) -> list[Json]:
        """The items of the conversation that a body goes on from. Raises Refusal."""
        previous_id, bytes_max = body.previous_response_id, self._service.body_limit
        if previous_id is None:
            return []
        if self._batches is None:
            raise _no_folder("previous_response_id")
        missing = Refusal(*_MISSING, param="previous_response_id")
        if not self._batches.thread.is_open and not await self._batches.is_there():
            raise missing
        owner, earlier = call.caller.name, EarlierItems(previous_id, bytes_max)
        while (next_id := earlier.next_id) is not None:
            links = await self.ask(partial(_links, owner, next_id))
            size = sum(each.row["bytes"] for each in links)
            call.input_bytes += size
            await self._make(owner, partial(earlier.read, links), size=size)
        return earlier.items()

    async def referred(self, call: Call, body: ResponseBody) -> dict[str, Json]:
        """Items of stored answers that a body names, by their ids. Raises Refusal."""
        owner, found, bytes_left = call.caller.name, dict[str, Json](), self._service.body_limit
        for at, item in enumerate(body.input):
            if not isinstance(item, ReferenceItem) or item.id in found:
                continue
            if self._batches is None:
                raise _no_folder("input")
            rows = await self.ask(partial(_answer_with, owner, item.id))
            size = sum(each.row["bytes"] for each in rows)
            call.input_bytes, bytes_left = call.input_bytes + size, bytes_left - size
            found |= await self._make(owner, partial(_items_of, rows), size=size)
            place = f"input[{at}]"
            if item.id not in found:
                message = f"{place}: no stored answer of this key has an item with this id."
                raise Refusal("response_not_found", message, param=place)
            if bytes_left < 0:
                message = f"{place}: the answers that are named are too long together."
                raise Refusal("invalid_value", message, param=place)
        return found

    async def ask(self, use: Callable[[ResponseTable], T | None]) -> T:
        """What the store says. Raises Refusal if it says nothing, or cannot be asked."""
        if self._batches is None:
            raise Refusal(*_MISSING)
        return await query_store(self._batches, on_table(use), _MISSING)

    async def read(self, owner: str, response_id: str, make: Callable[[StoredResponse], T]) -> T:
        """What is made of a response without its answer, in a worker thread. Raises Refusal."""
        row = await self.ask(lambda table: table.find(owner, response_id))
        return await self._make(owner, lambda: make(response_of(row)), size=row["bytes"])

    async def whole(self, owner: str, response_id: str) -> bytes:
        """The object of a response, as JSON. Raises Refusal."""
        rows = await self.ask(lambda table: table.find_whole(owner, response_id))
        return await self._make(owner, partial(object_bytes, rows), size=rows.row["bytes"])

    async def _make(self, owner: str, make: Callable[[], T], *, size: int) -> T:
        """What is made of rows of this size, in a worker thread, where keys take turns; large ones
        one after the other. Raises Refusal."""
        service, is_large = self._service, size > INLINE_BYTES_MAX
        threads = service.long_replies if is_large else service.worker_threads
        try:
            return await threads.submit((owner, is_large), make)
        except Damaged:
            raise Refusal("response_damaged", UNREADABLE, headers=NO_RETRY) from None

    async def keep(self, call: Call, form: ResponseForm, items: list[Json]) -> bool:
        """Keep a response that has ended; whether the disk took it."""
        owner = call.caller.name
        new = NewResponse(owner=owner, state=form.state, input=items, deltas=form.deltas)
        try:
            await self._store(new, size=call.input_bytes + form.answer_bytes)
        except (DiskError, Draining, Refusal) as error:
            _log.warning("%s is not kept: %s", form.id, error)
            return False
        return True

    async def queue(
        self, call: Call, form: ResponseForm, items: list[Json], chat: ChatBody
    ) -> ResponseState:
        """Keep a background response, which goes on by itself. Raises Refusal."""
        dump = partial(chat.model_dump, exclude_none=True, exclude_unset=True, by_alias=True)
        task = await asyncio.to_thread(dump, mode="json")
        task |= {"seed": form.seed, "stream": True}
        state = replace(form.state, status="queued", is_background=True)
        new = NewResponse(
            owner=call.caller.name,
            state=state,
            input=items,
            model=self._service.own_models[0],
            task=task,
        )
        with disk_refusals():
            await self._store(new, size=call.input_bytes)
        assert self.runner is not None, "There is a folder"
        self.runner.wake()
        return state

    async def _store(self, new: NewResponse, *, size: int) -> None:
        assert self._batches is not None, "It was checked"
        rows = await self._make(new.owner, partial(rows_of, new), size=size)
        await self._batches.thread.call(on_table(lambda table: table.add(rows)))

    async def cancel(self, owner: str, response_id: str) -> bytes:
        """End a background response; its object, as JSON. Raises Refusal."""
        rows = await self.ask(lambda table: table.cancel(owner, response_id, now_s()))
        self._drop(rows.row["serial"])
        return await self._make(owner, partial(object_bytes, rows), size=rows.row["bytes"])

    async def remove(self, owner: str, response_id: str) -> None:
        """Forget a response, and end it if it runs. Raises Refusal."""
        self._drop(await self.ask(lambda table: table.remove(owner, response_id)))

    def _drop(self, serial: int) -> None:
        assert self.runner is not None, "There is a folder"
        self.runner.drop(serial)

    def check_streams(self, owner: str) -> None:
        """Raise Refusal if the owner reads as many streams as may be."""
        self._watchers.check(owner)

    async def events(self, owner: str, response_id: str, after: int) -> AsyncIterator[bytes]:
        """Events of a response behind this number, as they come. Raises Refusal."""
        replay = await self.read(owner, response_id, partial(EventReplay, after=after))
        assert self._batches is not None, "There is a folder"
        self.check_streams(owner)
        return feed(self._service, self._batches.thread, self._watchers, owner, replay)


def _answer_with(owner: str, item_id: str, table: ResponseTable) -> list[ResponseRows]:
    rows = table.find_whole(owner, response_of_item(item_id))
    return [] if rows is None or rows.row["status"] not in ENDED_WELL else [rows]


def _items_of(rows: list[ResponseRows]) -> dict[str, Json]:
    return {item["id"]: item for each in rows for item in answered(each).state.output}


def _links(owner: str, response_id: str, table: ResponseTable) -> list[ResponseRows]:
    return table.links(owner, response_id)


def _no_folder(field: str) -> Refusal:
    message = f"{field} needs a folder of jobs, and this server has none (--jobs-dir)."
    return Refusal("unsupported_parameter", message, param=field)
