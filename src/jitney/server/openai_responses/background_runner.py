"""Answers responses that have no caller: `BackgroundRunner`. Event loop.

It takes those that have not ended from the store, oldest first and owners in turn, and writes what
they make back, piece by piece, as many together as have come: the next part of an answer is read
when the last one is on the disk. It remembers nothing that matters. Whatever is lost with the
process is taken up by the next one, from the stored tokens: the seed is stored with the request, so
the text is that of a calm run wherever equal texts hold (decision 19).

Each is a call of its key, with its rates and its share. What finds no room waits. While the disk is
full or fails, nothing new is read from the engine, which ends a request that is not read for long;
it begins again from the store.

Tests: tests/e2e/openai_responses/test_background.py.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from jitney import errors
from jitney.core.backend import Vocabulary
from jitney.engine.engine import EngineState
from jitney.engine.request_factory import check_tokens
from jitney.server.admission.calls import Call
from jitney.server.answer_call import Generation, prepare, run_work
from jitney.server.batches.store import BatchStore, StoreThread, until_disk_works
from jitney.server.error_object import Refusal, refusal_for
from jitney.server.openai.chat_body import ChatBody
from jitney.server.openai.check_body import check_fields
from jitney.server.openai.replies import Json, dump_json
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.background_form import BackgroundForm
from jitney.server.openai_responses.event_feed import Watchers
from jitney.server.openai_responses.item_events import state_of
from jitney.server.openai_responses.response_object import error_object, usage_object
from jitney.server.openai_responses.response_table import Ended, ResponseTable, on_table
from jitney.server.openai_responses.stored_rows import (
    UNREADABLE,
    AnswerPiece,
    Damaged,
    ResponseRows,
    piece_row,
    pieces_from,
    response_of,
)
from jitney.server.service import Service, now_s

T = TypeVar("T")

_WAITS = "The background responses wait for the disk"
_LATER = (errors.NoRoom, errors.BackendCrashed, MemoryError)
_STOPPED = (errors.Draining, errors.EngineStopped)
_PASSING_CODES = ("cancelled", "rate_limit_exceeded")
_UNREADABLE = dump_json({"code": "server_error", "message": UNREADABLE})

Kept = tuple[int, Json | None, Ended | None, "asyncio.Future[None]"]


class BackgroundRunner:
    """Runs background responses until its task is cancelled."""

    def __init__(self, service: Service, thread: StoreThread, watchers: Watchers) -> None:
        self._service = service
        self._thread = thread
        self._watchers = watchers
        self._may_fill = asyncio.Event()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._read_serial = 0
        """The last one that was read from the store."""
        self._waiting: dict[int, tuple[str, str]] = {}
        """Those that have not ended and do not run: owner and model, by their serials."""
        self._tasks: dict[int, tuple[str, asyncio.Task[None]]] = {}
        self._unkept: list[Kept] = []
        self._may_keep = asyncio.Event()
        self._may_fill.set()

    @property
    def running_count(self) -> int:
        """Responses that are being answered."""
        return len(self._tasks)

    @property
    def waiting_count(self) -> int:
        """Responses that wait to be answered."""
        return len(self._waiting)

    def wake(self) -> None:
        """A response was added."""
        self._may_fill.set()

    def drop(self, serial: int) -> None:
        """The store says that it has ended, or is gone: make no more of it."""
        self._waiting.pop(serial, None)
        if serial in self._tasks:
            self._tasks[serial][1].cancel()
        self._watchers.tell(serial)

    async def run(self) -> None:
        """Run responses. It ends with its task, and with an error of ours."""
        self._begin_anew()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._fill_always(tasks))
            tasks.create_task(self._keep_always())
            tasks.create_task(self._sweep_always())

    async def _fill_always(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._may_fill.wait()
            self._may_fill.clear()
            await until_disk_works(self._read_waiting, _WAITS)
            while self._has_room() and (serial := self._next()) is not None:
                self._start(tasks, serial)

    async def _read_waiting(self) -> None:
        count = limits.WAITING_READ
        while count == limits.WAITING_READ:
            after = self._read_serial
            found = await self._use(lambda table: table.unfinished(after, limits.WAITING_READ))  # noqa: B023, at once
            count = len(found)
            for serial, owner, model in found:
                self._read_serial = serial
                self._waiting[serial] = owner, model

    def _has_room(self) -> bool:
        engine, admission = self._service.engine, self._service.admission
        is_open = engine.state is EngineState.RUNNING and not admission.is_draining
        return is_open and len(self._tasks) < engine.settings.max_num_seqs

    def _next(self) -> int | None:
        """The oldest of the owner that has the fewest; it waits for its key and its model."""
        running = Counter(owner for owner, _ in self._tasks.values())
        ready = (
            (running[owner], serial)
            for serial, (owner, model) in self._waiting.items()
            if self._service.serves(owner, model)
        )
        return min(ready, default=(0, None))[1]

    def _start(self, tasks: asyncio.TaskGroup, serial: int) -> None:
        owner, model = self._waiting.pop(serial)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.pop(serial, None)
            self._may_fill.set()

        task = tasks.create_task(self._run_one(serial, owner, model))
        self._tasks[serial] = owner, task
        task.add_done_callback(end)

    async def _run_one(self, serial: int, owner: str, model: str) -> None:
        """Answer one response. Without room for it, it waits again, and another has its place."""
        try:
            end = await self._answer_stored(serial, owner)
        except errors.QueueFull as full:
            seconds = min(max(full.retry_after_s, limits.LATER_S_MIN), limits.LATER_S_MAX)
            loop = asyncio.get_running_loop()
            loop.call_later(seconds, self._wait_again, serial, owner, model)
        except errors.EngineStopped:
            return
        else:
            if end is not None:
                await self._keep(serial, end=end)

    def _wait_again(self, serial: int, owner: str, model: str) -> None:
        # All of them may have been begun anew meanwhile.
        if serial not in self._tasks:
            self._waiting[serial] = owner, model
            self._may_fill.set()

    async def _answer_stored(self, serial: int, owner: str) -> Ended | None:
        """How it ended; None if it had ended before. Raises QueueFull and EngineStopped."""
        began = partial(self._use, lambda table: table.begin(serial))
        try:
            found = await until_disk_works(began, _WAITS)
            if found is None:
                return None
            self._watchers.tell(serial)
            return await self._answer(serial, owner, found)
        except Damaged:
            return Ended(serial=serial, status="failed", now=now_s(), error=_UNREADABLE)
        except Exception as error:
            self._raise_unless_final(error)
            refusal = refusal_for(error, f"response {serial}")
            told = dump_json(error_object(refusal.body))
            return Ended(serial=serial, status="failed", now=now_s(), error=told)

    async def _answer(self, serial: int, owner: str, rows: ResponseRows) -> Ended:
        service = self._service
        caller = service.keys.named(owner)
        if caller is None:
            raise errors.EngineStopped("Its key is not here.")
        call = Call(rows.row["id"], service.clock.now(), is_large=True)
        call.caller = caller
        # It may be a long conversation, with much of an answer.
        task = partial(_task_of, rows, service.vocabulary)
        body, pieces = await run_work(service, call, task)
        make_form = partial(BackgroundForm, response_id=call.id)
        generation = await prepare(service, body, call, make_form)
        form = generation.reply
        assert isinstance(form, BackgroundForm), "it was prepared as one"
        if pieces:
            await run_work(service, call, partial(form.go_on, pieces))
        with generation.running():
            await self._read_all(serial, generation, form)
        last = form.take()
        return Ended(
            serial=serial,
            status=state_of(form.finish_reason),
            now=now_s(),
            usage=dump_json(usage_object(generation.usages(), form.reasoning_count)),
            piece=piece_row(last) if last is not None and last.deltas else None,
        )

    async def _read_all(self, serial: int, generation: Generation, form: BackgroundForm) -> None:
        """Write what it makes, piece by piece. The last piece goes with the end."""
        news = asyncio.Event()
        note = partial(self._service.loop_calls.call, news.set)
        generation.listen(note)
        while True:
            await news.wait()
            news.clear()
            generation.read(note)
            if generation.is_over:
                return
            if form.finish_reason is None and (piece := form.take()) is not None:
                await self._keep(serial, piece_row(piece))

    def _raise_unless_final(self, error: Exception) -> None:
        """Raise what `_run_one` waits for, where the request itself is not the reason."""
        if self._service.is_stopping or isinstance(error, _STOPPED):
            raise errors.EngineStopped("Nothing more is answered here.") from error
        if isinstance(error, errors.QueueFull):
            raise error
        is_passing = isinstance(error, Refusal) and error.code in _PASSING_CODES
        if is_passing or isinstance(error, _LATER):
            message = "There is no room for the response now."
            raise errors.QueueFull(message, limits.LATER_S_MAX) from error

    async def _keep(self, serial: int, piece: Json | None = None, end: Ended | None = None) -> None:
        """Write this, together with what others write, and wait until it is on the disk."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unkept.append((serial, piece, end, written))
        self._may_keep.set()
        await written

    async def _keep_always(self) -> None:
        while True:
            await self._may_keep.wait()
            self._may_keep.clear()
            unkept, self._unkept = self._unkept, []
            try:
                await self._write(unkept)
            except Exception:
                # One that cannot be written must not end the others.
                for each in unkept:
                    await self._write_alone(each)

    async def _write_alone(self, unkept: Kept) -> None:
        try:
            await self._write([unkept])
        except Exception as error:
            written = unkept[3]
            if not written.done():
                written.set_exception(error)

    async def _write(self, unkept: Sequence[Kept]) -> None:
        pieces = [(serial, piece) for serial, piece, _, _ in unkept if piece is not None]
        ends = [end for _, _, end, _ in unkept if end is not None]
        write = partial(self._use, lambda table: table.keep(pieces, ends))
        await until_disk_works(write, _WAITS)
        for serial, _, _, written in unkept:
            self._watchers.tell(serial)
            if not written.done():
                written.set_result(None)

    async def _sweep_always(self) -> None:
        while True:
            sweep = partial(self._use, lambda table: table.sweep(now_s()))
            swept = 0
            while rows := await until_disk_works(sweep, _WAITS):
                swept += rows
            if swept:
                shrink = partial(self._thread.call, BatchStore.shrink)
                await until_disk_works(shrink, _WAITS)
            await asyncio.sleep(limits.SWEEP_S)

    async def _use(self, use: Callable[[ResponseTable], T]) -> T:
        return await self._thread.call(on_table(use))


def _task_of(rows: ResponseRows, vocabulary: Vocabulary) -> tuple[ChatBody, list[AnswerPiece]]:
    """What is to be answered, and what there is of the answer. Raises Damaged and Refusal."""
    task, pieces = response_of(rows.row).task, pieces_from(rows.pieces)
    try:
        for each in pieces:
            check_tokens(vocabulary, "tokens", each.tokens)
    except errors.InvalidRequest:
        raise Damaged from None
    if task is None:
        raise Damaged
    return check_fields(task, ChatBody), pieces
