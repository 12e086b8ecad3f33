"""The endpoints of batches of Anthropic's messages, one short function each. Event loop.

A body with requests becomes a file of lines and a batch of it, in one call to the store. From
there on it is as any other batch: see `batches/store.py`. Whoever lists files and batches in
OpenAI's form sees them too. The body of a call is bounded as any body is.

Tests: tests/e2e/batches/test_message_batches.py.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, BinaryIO, NamedTuple

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from jitney.server.admission.calls import Call
from jitney.server.anthropic.message_routes import described, unknown_of
from jitney.server.batches import limits
from jitney.server.batches.batch_routes import NO_BATCH, After
from jitney.server.batches.batches import Batches
from jitney.server.batches.database import DiskError
from jitney.server.batches.message_lines import MESSAGES, MessageLine
from jitney.server.batches.rows import BatchStatus, NewBatch, StoredBatch, StoredLine
from jitney.server.batches.store import BatchStore
from jitney.server.batches.store_calls import (
    Owner,
    away,
    disk_refusals,
    enter,
    idempotency_key,
    open_store,
    pieces_of,
    query_store,
)
from jitney.server.batches.uploads import Uploads
from jitney.server.error_object import Refusal
from jitney.server.openai.bodies import Strict, most
from jitney.server.openai.check_body import check_body
from jitney.server.openai.replies import Json, dump_json
from jitney.server.service import Service

PATH = f"{MESSAGES}/batches"
FILENAME = "messages.jsonl"

_STATUSES = {BatchStatus.CANCELLING: "canceling"}
_ENDS = {BatchStatus.EXPIRED: "expired", BatchStatus.CANCELLED: "canceled"}


class MessageBatchBody(Strict):
    """POST /v1/messages/batches."""

    requests: Annotated[list[MessageLine], most(limits.LINES_MAX, least=1)] = Field(
        description="Each with a `custom_id` of its own, and `params`: a body of `/v1/messages` "
        "without `stream`. What is wrong with `params` is an error of that request alone."
    )


class _Lines(NamedTuple):
    """The requests of a body as an input: its text, and the place of each line."""

    content: bytes
    lines: tuple[StoredLine, ...]


def make_message_batch_router(service: Service, batches: Batches) -> APIRouter:
    """The endpoints of batches of messages."""
    router = APIRouter()
    uploads = Uploads(service, batches.thread, batches.now, batches.bounds.bytes_max)

    @router.post(PATH, openapi_extra=described(MessageBatchBody))
    async def create(request: Request) -> Response:
        """Answer messages behind live calls, on what these leave."""
        created = await _create(service, batches, uploads, request)
        batches.stages.wake()
        return JSONResponse(message_batch_object(created))

    @router.get(PATH)
    async def list_batches(
        owner: Owner,
        after_id: After = None,
        before_id: After = None,
        limit: Annotated[int, Query(ge=1, le=limits.MESSAGES_LISTED_MAX)] = 20,
    ) -> Response:
        """The caller's batches of messages, newest first."""

        def query(store: BatchStore) -> Sequence[StoredBatch] | None:
            return store.batches.listed_messages(owner, after_id, before_id, limit + 1)

        found: Sequence[StoredBatch] = await query_store(batches, query, NO_BATCH, ())
        return JSONResponse(_listed(found, limit, is_before=before_id is not None))

    @router.get(f"{PATH}/{{batch_id}}")
    async def batch(owner: Owner, batch_id: str) -> Response:
        """One of the caller's batches of messages."""
        found = await query_store(batches, partial(_find, owner, batch_id), NO_BATCH)
        return JSONResponse(message_batch_object(found))

    @router.post(f"{PATH}/{{batch_id}}/cancel")
    async def cancel(owner: Owner, batch_id: str) -> Response:
        """Ask no more of its requests. What is done stays, and one that has ended stays as it
        is."""
        query = partial(_cancel, owner, batch_id, batches.now())
        found = await query_store(batches, query, NO_BATCH)
        batches.stages.wake()
        return JSONResponse(message_batch_object(found))

    @router.delete(f"{PATH}/{{batch_id}}")
    async def delete(owner: Owner, batch_id: str) -> Response:
        """Delete one that has ended, with its requests and results."""
        await query_store(batches, partial(_remove, owner, batch_id), NO_BATCH)
        return JSONResponse({"id": batch_id, "type": "message_batch_deleted"})

    @router.get(f"{PATH}/{{batch_id}}/results")
    async def results(owner: Owner, batch_id: str) -> Response:
        """A line for each request of one that has ended, in any order."""
        found = await query_store(batches, partial(_with_results, owner, batch_id), NO_BATCH)
        files = await asyncio.to_thread(_open_results, batches, found)
        return StreamingResponse(_contents(files), media_type="application/x-jsonl")

    return router


async def _create(
    service: Service, batches: Batches, uploads: Uploads, request: Request
) -> StoredBatch:
    """A batch of the requests in the body of a call. Raises Refusal."""
    owner = enter(service, request)
    call = Call.of(request.scope)
    with service.admission.place(call.caller) as call.place:
        check = partial(_lines_of, values_max=service.values_max)
        asked: _Lines = await service.bodies.read(request, check)
        key = idempotency_key(request)
        with disk_refusals():
            await open_store(batches)
            file = await uploads.store(owner, FILENAME, asked.content)
            new = _new_batch(service, owner, file.id, key, batches.now(), unknown_of(request))
            return await batches.thread.call(partial(_begin, new, asked))


def message_batch_object(batch: StoredBatch) -> Json:
    """A batch of messages, in Anthropic's form. Its requests are all being processed until it
    ends."""
    has_ended = not batch.status.is_live
    ends = (batch.completed_at, batch.failed_at, batch.expired_at, batch.cancelled_at)
    return {
        "id": batch.id,
        "type": "message_batch",
        "processing_status": "ended" if has_ended else _STATUSES.get(batch.status, "in_progress"),
        "request_counts": _counts(batch),
        "created_at": _written(batch.created_at),
        "expires_at": _written(batch.expires_at),
        "ended_at": _written(next((each for each in ends if each is not None), None)),
        "cancel_initiated_at": _written(batch.cancelling_at),
        "archived_at": None,
        "results_url": f"{PATH}/{batch.id}/results" if has_ended else None,
    }


def _counts(batch: StoredBatch) -> Json:
    counts = dict.fromkeys(("processing", "succeeded", "errored", "canceled", "expired"), 0)
    if batch.status.is_live:
        return {**counts, "processing": batch.total}
    counts["errored"] = batch.failed if batch.errored is None else batch.errored
    counts["succeeded"] = batch.completed
    if batch.status in _ENDS:
        counts[_ENDS[batch.status]] = batch.failed - counts["errored"]
    return counts


def _written(seconds: int | None) -> str | None:
    """A time as RFC 3339 has it."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _lines_of(content: bytes, values_max: int) -> _Lines:
    """The requests in the body of a call. Raises Refusal."""
    body = check_body(content, MessageBatchBody, values_max)
    written: list[bytes] = []
    lines: list[StoredLine] = []
    ids: set[str] = set()
    start = 0
    for number, each in enumerate(body.requests, start=1):
        if each.custom_id in ids:
            message = f"requests[{number - 1}] has the custom_id of an earlier one."
            raise Refusal("invalid_value", message, param="requests")
        ids.add(each.custom_id)
        fields = {"custom_id": each.custom_id, "params": each.params}
        line = dump_json(fields).encode() + b"\n"
        written.append(line)
        lines.append(
            StoredLine(number=number, start=start, length=len(line), custom_id=each.custom_id)
        )
        start += len(line)
    return _Lines(b"".join(written), tuple(lines))


def _new_batch(
    service: Service,
    owner: str,
    file_id: str,
    key: str | None,
    created_at: int,
    unknown: str | None,
) -> NewBatch:
    return NewBatch(
        owner=owner,
        endpoint=MESSAGES,
        model=service.own_models[0],
        input_file_id=file_id,
        metadata=None if unknown is None else {unknown: "ignored"},
        idempotency_key=key,
        created_at=created_at,
        expires_at=created_at + limits.WINDOW_S,
    )


def _begin(new: NewBatch, asked: _Lines, store: BatchStore) -> StoredBatch:
    """On the store's thread: a batch with its lines, which were checked already. One that is cut
    off in between is checked like any other. Raises Refusal."""
    try:
        created = store.batches.create(new)
    except (Refusal, DiskError):
        with suppress(DiskError):
            store.remove_file(new.owner, new.input_file_id)
        raise
    if created.input_file_id != new.input_file_id:
        # The same call came before, with the same key.
        store.remove_file(new.owner, new.input_file_id)
    elif created.status is BatchStatus.VALIDATING:
        # The batch is there: a caller that is refused would send it again.
        with suppress(DiskError):
            store.batches.add_lines(created, asked.lines, len(asked.content), len(asked.lines))
            store.batches.begin(created.serial, new.created_at)
    return store.batches.get(created.serial)


def _find(owner: str, batch_id: str, store: BatchStore) -> StoredBatch | None:
    found = store.batches.find(owner, batch_id)
    return found if found is not None and found.endpoint == MESSAGES else None


def _with_results(owner: str, batch_id: str, store: BatchStore) -> StoredBatch | None:
    """A batch that has ended, and whose results are there. Raises Refusal."""
    found = _find(owner, batch_id, store)
    if found is None:
        return None
    _check_ended(found, "has no results yet")
    if any(store.find_file(owner, each) is None for each in found.result_ids):
        raise Refusal("file_not_found", "The file with results of this batch was deleted.")
    return found


def _cancel(owner: str, batch_id: str, now: int, store: BatchStore) -> StoredBatch | None:
    if _find(owner, batch_id, store) is None:
        return None
    found = store.batches.cancel(owner, batch_id, now)
    return None if found is None else found[0]


def _remove(owner: str, batch_id: str, store: BatchStore) -> StoredBatch | None:
    """On the store's thread: remove a batch, its files first. Where that is cut off, the same call
    does the rest."""
    found = _find(owner, batch_id, store)
    if found is None:
        return None
    _check_ended(found, "is still being answered; cancel it first, or wait")
    for file_id in (found.input_file_id, *found.result_ids):
        store.remove_file(owner, file_id)
    store.batches.remove(found.serial)
    return found


def _check_ended(batch: StoredBatch, what: str) -> None:
    if batch.status.is_live:
        raise Refusal("batch_not_ended", f"The batch {what}.")


def _open_results(batches: Batches, batch: StoredBatch) -> list[BinaryIO]:
    """The files with its results. Raises Refusal."""
    opened: list[BinaryIO] = []
    try:
        for file_id in batch.result_ids:
            opened.append(batches.thread.store.content.open_content(file_id))
    except OSError:
        for file in opened:
            file.close()
        raise away() from None
    return opened


async def _contents(files: list[BinaryIO]) -> AsyncIterator[bytes]:
    try:
        for file in files:
            async for piece in pieces_of(file):
                yield piece
    finally:
        for file in files:
            file.close()


def _listed(found: Sequence[StoredBatch], limit: int, *, is_before: bool) -> Json:
    """A page of batches. One more than the limit says that there are more: the last one, or the
    first where those before another one were asked for."""
    rows = found[-limit:] if is_before else found[:limit]
    return {
        "data": [message_batch_object(each) for each in rows],
        "has_more": len(found) > limit,
        "first_id": rows[0].id if rows else None,
        "last_id": rows[-1].id if rows else None,
    }
