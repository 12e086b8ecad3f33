"""The endpoints of files and batches, one short function each. Event loop.

Files and batches belong to the key that they came with: for another key they are not there. A call
counts as one request of its key's rate; the lines of a batch do not.

Tests: tests/e2e/batches/test_batches.py, test_uploads.py and test_job_limits.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, BinaryIO, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from jitney.errors import ConfigError, Draining
from jitney.server.batches import limits
from jitney.server.batches.batch_table import InputMissing, KeyReused, TooManyBatches
from jitney.server.batches.database import DiskTrouble
from jitney.server.batches.file_table import FileInUse
from jitney.server.batches.job_bodies import BatchBody
from jitney.server.batches.jobs import Jobs
from jitney.server.batches.objects import WINDOW, batch_object, file_object, listed
from jitney.server.batches.store import JobStore
from jitney.server.batches.stored import NewBatch, StoredBatch, StoredFile
from jitney.server.batches.uploads import Uploads
from jitney.server.call import Call
from jitney.server.error_object import NO_RETRY, Refusal, retry_headers
from jitney.server.openai.check_body import check_body
from jitney.server.service import Service

Made = TypeVar("Made")

_log = logging.getLogger("jitney.server.batches")

After = Annotated[str | None, Query(max_length=limits.IDEMPOTENCY_KEY_CHARACTERS_MAX)]
FileCount = Annotated[int, Query(ge=1, le=limits.FILES_LISTED_MAX)]
BatchCount = Annotated[int, Query(ge=1, le=limits.BATCHES_LISTED_MAX)]

_UPLOAD: dict[str, Any] = {  # Any: a part of the OpenAPI document
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["purpose", "file"],
                    "properties": {
                        "purpose": {"const": "batch"},
                        "file": {"type": "string", "format": "binary"},
                    },
                }
            }
        },
    }
}

_CREATE: dict[str, Any] = {  # Any: a part of the OpenAPI document
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": BatchBody.model_json_schema()}},
    }
}


def make_file_router(service: Service, jobs: Jobs) -> APIRouter:
    """The endpoints of files."""
    router = APIRouter()
    uploads = Uploads(service, jobs.thread, jobs.now, jobs.bounds.bytes_max)

    @router.post("/v1/files", openapi_extra=_UPLOAD)
    async def upload(request: Request) -> Response:
        """Store a file of lines for a batch."""
        owner = _enter(service, request)
        with _troubles():
            await _opened(jobs)
            return JSONResponse(file_object(await uploads.receive(request, owner)))

    @router.get("/v1/files")
    async def files(
        request: Request,
        purpose: Literal["batch", "batch_output"] | None = None,
        after: After = None,
        limit: FileCount = limits.FILES_LISTED_MAX,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """The caller's files."""
        owner, is_oldest_first = _owner(request), order == "asc"

        def find(store: JobStore) -> Sequence[StoredFile] | None:
            return store.files.listed(
                owner, purpose, after, limit + 1, is_oldest_first=is_oldest_first
            )

        rows: Sequence[StoredFile] | None = await _asked(jobs, find, ())
        found = _there(rows, _no_file)
        return JSONResponse(listed(found[:limit], file_object, has_more=len(found) > limit))

    @router.get("/v1/files/{file_id}")
    async def file(request: Request, file_id: str) -> Response:
        """One of the caller's files."""
        return JSONResponse(file_object(await _file(jobs, request, file_id)))

    @router.delete("/v1/files/{file_id}")
    async def delete(request: Request, file_id: str) -> Response:
        """Delete one of the caller's files, unless a batch still reads it."""
        await _delete(jobs, _owner(request), file_id)
        return JSONResponse({"id": file_id, "object": "file", "deleted": True})

    @router.get("/v1/files/{file_id}/content")
    async def content(request: Request, file_id: str) -> Response:
        """The content of one of the caller's files."""
        return await _content(jobs, await _file(jobs, request, file_id))

    return router


def make_batch_router(service: Service, jobs: Jobs) -> APIRouter:
    """The endpoints of batches."""
    router = APIRouter()

    @router.post("/v1/batches", openapi_extra=_CREATE)
    async def create(request: Request) -> Response:
        """Run the lines of a file behind live calls, on what these leave."""
        owner = _enter(service, request)
        call = Call.of(request.scope)
        with service.admission.place(call.caller) as call.place:
            body = await service.bodies.read(request, partial(check_body, kind=BatchBody))
        new = _new_batch(body, owner, service.model_name, _idempotency_key(request), jobs.now())
        with _troubles():
            await _opened(jobs)
            made = await _create(jobs, new)
        jobs.wake()
        return JSONResponse(batch_object(made))

    @router.get("/v1/batches")
    async def batches(request: Request, after: After = None, limit: BatchCount = 20) -> Response:
        """The caller's batches, newest first."""
        owner = _owner(request)

        def find(store: JobStore) -> Sequence[StoredBatch] | None:
            return store.batches.listed(owner, after, limit + 1)

        rows: Sequence[StoredBatch] | None = await _asked(jobs, find, ())
        found = _there(rows, _no_batch)
        return JSONResponse(listed(found[:limit], batch_object, has_more=len(found) > limit))

    @router.get("/v1/batches/{batch_id}")
    async def batch(request: Request, batch_id: str) -> Response:
        """One of the caller's batches."""
        owner = _owner(request)
        found = await _asked(jobs, lambda store: store.batches.find(owner, batch_id), None)
        return JSONResponse(batch_object(_there(found, _no_batch)))

    @router.post("/v1/batches/{batch_id}/cancel")
    async def cancel(request: Request, batch_id: str) -> Response:
        """Run no more lines of a batch. What is done stays."""
        owner = _owner(request)
        found = await _asked(
            jobs, lambda store: store.batches.cancel(owner, batch_id, jobs.now()), None
        )
        made, is_cancelled = _there(found, _no_batch)
        if not is_cancelled:
            message = f"The batch is {made.status.value}; it cannot be cancelled any more."
            raise Refusal("batch_ended", message)
        jobs.wake()
        return JSONResponse(batch_object(made))

    return router


def _new_batch(
    body: BatchBody, owner: str, model: str, idempotency_key: str | None, now: int
) -> NewBatch:
    assert body.completion_window == WINDOW, body.completion_window
    return NewBatch(
        owner=owner,
        endpoint=body.endpoint,
        model=model,
        input_file_id=body.input_file_id,
        metadata=body.metadata,
        idempotency_key=idempotency_key,
        created_at=now,
        expires_at=now + limits.WINDOW_S,
    )


async def _create(jobs: Jobs, new: NewBatch) -> StoredBatch:
    try:
        return await jobs.call(lambda store: store.batches.create(new))
    except InputMissing:
        message = "There is no file for a batch with this id; upload one with purpose batch."
        raise Refusal("file_not_found", message, param="input_file_id") from None
    except KeyReused:
        message = "This Idempotency-Key was used for another batch; use a new one."
        raise Refusal("idempotency_key_reused", message) from None
    except TooManyBatches:
        message = (
            f"{limits.BATCHES_LIVE_MAX} batches of this key have not ended, as many as may be; "
            "wait for one, or cancel it."
        )
        raise Refusal("too_many_batches", message, headers=NO_RETRY) from None


async def _asked(jobs: Jobs, use: Callable[[JobStore], Made], otherwise: Made) -> Made:
    """What the store says; `otherwise` if there is none yet. Raises Refusal."""
    if not jobs.thread.is_open:
        if await jobs.is_there():
            raise _unavailable(jobs)
        return otherwise
    with _troubles():
        return await jobs.call(use)


def _there(found: Made | None, missing: Callable[[], Refusal]) -> Made:
    """What was found. Raises Refusal if nothing was."""
    if found is None:
        raise missing()
    return found


async def _file(jobs: Jobs, request: Request, file_id: str) -> StoredFile:
    owner = _owner(request)
    found = await _asked(jobs, lambda store: store.files.find(owner, file_id), None)
    return _there(found, _no_file)


async def _delete(jobs: Jobs, owner: str, file_id: str) -> None:
    try:
        removed = await _asked(jobs, lambda store: store.remove_file(owner, file_id), None)
    except FileInUse:
        message = "A batch that has not ended reads this file; cancel it first, or wait."
        raise Refusal("file_in_use", message) from None
    _there(removed, _no_file)


async def _content(jobs: Jobs, file: StoredFile) -> Response:
    try:
        opened = await asyncio.to_thread(jobs.thread.store.open_content, file.id)
    except OSError as error:
        # Unless it was deleted in this moment, its disk is away.
        still = await _asked(jobs, lambda store: store.files.find(file.owner, file.id), None)
        _there(still, _no_file)
        _log.warning("The content of %s cannot be read: %s", file.id, error.strerror)
        raise _away() from None
    return StreamingResponse(
        _pieces(opened),
        media_type="application/octet-stream",
        headers={"content-length": str(file.bytes)},
    )


async def _opened(jobs: Jobs) -> None:
    try:
        await jobs.open()
    except (ConfigError, OSError) as error:
        _log.warning("Files and batches cannot be taken: %s", error)
        raise _unavailable(jobs) from None


@contextmanager
def _troubles() -> Iterator[None]:
    """Turn a failure of the disk into an answer."""
    try:
        yield
    except DiskTrouble as trouble:
        _log.warning("A call for files or batches was refused: %s", trouble)
        if not trouble.is_full:
            raise _away() from None
        message = "The server's disk is full, or cannot be used now; try again later."
        raise Refusal("disk_full", message, headers=NO_RETRY) from None


async def _pieces(file: BinaryIO) -> AsyncIterator[bytes]:
    try:
        while piece := await asyncio.to_thread(file.read, limits.READ_BYTES):
            yield piece
    finally:
        file.close()


def _owner(request: Request) -> str:
    return Call.of(request.scope).caller.name


def _enter(service: Service, request: Request) -> str:
    """Count a call that brings work; the name of its key."""
    if service.admission.is_draining:
        raise Draining("The server is shutting down.")
    caller = Call.of(request.scope).caller
    caller.enter()
    return caller.name


def _idempotency_key(request: Request) -> str | None:
    given = request.headers.get("idempotency-key")
    if given is not None and not 0 < len(given) <= limits.IDEMPOTENCY_KEY_CHARACTERS_MAX:
        message = f"Idempotency-Key has 1 to {limits.IDEMPOTENCY_KEY_CHARACTERS_MAX} characters."
        raise Refusal("invalid_value", message, param="Idempotency-Key")
    return given


def _unavailable(jobs: Jobs) -> Refusal:
    """The store is there and not open: nobody can say what is in it."""
    if jobs.is_waiting:
        return _away()
    message = "Files and batches cannot be stored here; whoever runs the server can see why."
    return Refusal("jobs_unavailable", message, headers=NO_RETRY)


def _away() -> Refusal:
    message = "Files and batches cannot be reached at the moment; try again later."
    return Refusal("jobs_unavailable", message, headers=retry_headers(limits.STORE_S))


def _no_file() -> Refusal:
    return Refusal("file_not_found", "There is no file with this id.")


def _no_batch() -> Refusal:
    return Refusal("batch_not_found", "There is no batch with this id.")
