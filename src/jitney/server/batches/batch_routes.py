"""The endpoints of files and batches, one short function each. Event loop.

Files and batches belong to the key that they came with: for another key they are not there. A call
counts as one request of its key's rate; the lines of a batch do not.

Tests: tests/e2e/batches/test_batches.py, test_uploads.py and test_batch_limits.py.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from jitney.server.admission.calls import Call
from jitney.server.batches import limits
from jitney.server.batches.batches import Batches
from jitney.server.batches.lines import Endpoint
from jitney.server.batches.rows import (
    WINDOW,
    NewBatch,
    StoredBatch,
    StoredFile,
    batch_object,
    file_object,
    listed,
)
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
from jitney.server.openai.bodies import Name, Strict
from jitney.server.openai.chat_body import Metadata
from jitney.server.openai.check_body import check_body
from jitney.server.openai.refused_fields import RefusedField
from jitney.server.service import Service

T = TypeVar("T")

_log = logging.getLogger("jitney.server.batches")


class BatchBody(Strict):
    """POST /v1/batches."""

    refused = {  # noqa: RUF012, of the base
        "output_expires_after": RefusedField("results stay until their file is deleted")
    }

    input_file_id: Name = Field(description="A file that was uploaded with purpose `batch`.")
    endpoint: Endpoint = Field(
        description="`/v1/chat/completions` or `/v1/completions`; each line has the same."
    )
    completion_window: Literal["24h"] = Field(
        description="`24h`; what is not done by then is in the error file."
    )
    metadata: Metadata | None = Field(None, description="Up to 16 strings, kept with the batch.")


After = Annotated[str | None, Query(max_length=limits.IDEMPOTENCY_KEY_CHARACTERS_MAX)]
FileCount = Annotated[int, Query(ge=1, le=limits.FILES_LISTED_MAX)]
BatchCount = Annotated[int, Query(ge=1, le=limits.BATCHES_LISTED_MAX)]

_NO_FILE = ("file_not_found", "There is no file with this id.")
NO_BATCH = ("batch_not_found", "There is no batch with this id.")

_FORM: dict[str, Any] = {  # Any: a part of the OpenAPI document
    "type": "object",
    "required": ["purpose", "file"],
    "properties": {"purpose": {"const": "batch"}, "file": {"type": "string", "format": "binary"}},
}


def _described(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """How the OpenAPI document describes a body."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


def make_file_router(service: Service, batches: Batches) -> APIRouter:
    """The endpoints of files."""
    router = APIRouter()
    uploads = Uploads(service, batches.thread, batches.now, batches.bounds.bytes_max)

    @router.post("/v1/files", openapi_extra=_described("multipart/form-data", _FORM))
    async def upload(request: Request) -> Response:
        """Store a file of lines for a batch."""
        owner = enter(service, request)
        with disk_refusals():
            await open_store(batches)
            return JSONResponse(file_object(await uploads.receive(request, owner)))

    @router.get("/v1/files")
    async def files(
        owner: Owner,
        purpose: Literal["batch", "batch_output"] | None = None,
        after: After = None,
        limit: FileCount = limits.FILES_LISTED_MAX,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """The caller's files."""

        def query(store: BatchStore) -> Sequence[StoredFile] | None:
            return store.list_files(owner, purpose, after, limit + 1, order)

        found: Sequence[StoredFile] = await query_store(batches, query, _NO_FILE, ())
        return JSONResponse(listed(found, limit, file_object))

    @router.get("/v1/files/{file_id}")
    async def file(owner: Owner, file_id: str) -> Response:
        """One of the caller's files."""
        return JSONResponse(file_object(await _file(batches, owner, file_id)))

    @router.delete("/v1/files/{file_id}")
    async def delete(owner: Owner, file_id: str) -> Response:
        """Delete one of the caller's files, unless a batch still reads it."""
        await query_store(batches, lambda store: store.remove_file(owner, file_id), _NO_FILE)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    @router.get("/v1/files/{file_id}/content")
    async def content(owner: Owner, file_id: str) -> Response:
        """The content of one of the caller's files."""
        return await _content(batches, await _file(batches, owner, file_id))

    return router


def make_batch_router(service: Service, batches: Batches) -> APIRouter:
    """The endpoints of batches."""
    router = APIRouter()
    schema = BatchBody.model_json_schema()

    @router.post("/v1/batches", openapi_extra=_described("application/json", schema))
    async def create(request: Request) -> Response:
        """Run the lines of a file behind live calls, on what these leave."""
        new = await _new_batch(service, request, batches.now)
        with disk_refusals():
            await open_store(batches)
            created = await batches.thread.call(lambda store: store.batches.create(new))
        batches.stages.wake()
        return JSONResponse(batch_object(created))

    @router.get("/v1/batches", name="batches")
    async def list_batches(owner: Owner, after: After = None, limit: BatchCount = 20) -> Response:
        """The caller's batches, newest first."""

        def query(store: BatchStore) -> Sequence[StoredBatch] | None:
            return store.batches.listed(owner, after, limit + 1)

        found: Sequence[StoredBatch] = await query_store(batches, query, NO_BATCH, ())
        return JSONResponse(listed(found, limit, batch_object))

    @router.get("/v1/batches/{batch_id}")
    async def batch(owner: Owner, batch_id: str) -> Response:
        """One of the caller's batches."""
        found = await query_store(
            batches, lambda store: store.batches.find(owner, batch_id), NO_BATCH
        )
        return JSONResponse(batch_object(found))

    @router.post("/v1/batches/{batch_id}/cancel")
    async def cancel(owner: Owner, batch_id: str) -> Response:
        """Run no more lines of a batch. What is done stays."""
        now = batches.now()
        found, is_cancelled = await query_store(
            batches, lambda store: store.batches.cancel(owner, batch_id, now), NO_BATCH
        )
        if not is_cancelled:
            message = f"The batch is {found.status.value}; it cannot be cancelled any more."
            raise Refusal("batch_ended", message)
        batches.stages.wake()
        return JSONResponse(batch_object(found))

    return router


async def _new_batch(service: Service, request: Request, now: Callable[[], int]) -> NewBatch:
    """What the body of a request and its headers say. Raises Refusal."""
    owner = enter(service, request)
    call = Call.of(request.scope)
    with service.admission.place(call.caller) as call.place:
        body = await service.bodies.read(request, partial(check_body, kind=BatchBody))
    assert body.completion_window == WINDOW, body.completion_window
    created_at = now()
    return NewBatch(
        owner=owner,
        endpoint=body.endpoint,
        model=service.own_models[0],
        input_file_id=body.input_file_id,
        metadata=body.metadata,
        idempotency_key=idempotency_key(request),
        created_at=created_at,
        expires_at=created_at + limits.WINDOW_S,
    )


async def _file(batches: Batches, owner: str, file_id: str) -> StoredFile:
    return await query_store(batches, lambda store: store.find_file(owner, file_id), _NO_FILE)


async def _content(batches: Batches, file: StoredFile) -> Response:
    try:
        opened = await asyncio.to_thread(batches.thread.store.content.open_content, file.id)
    except OSError as error:
        # Unless it was deleted in this moment, its disk is away.
        await _file(batches, file.owner, file.id)
        _log.warning("The content of %s cannot be read: %s", file.id, error.strerror)
        raise away() from None
    return StreamingResponse(
        pieces_of(opened),
        media_type="application/octet-stream",
        headers={"content-length": str(file.bytes)},
    )
