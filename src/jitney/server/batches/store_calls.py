"""What calls for files and batches share: whose they are, and how the store is asked. Event loop.

Tests: tests/e2e/batches/test_batches.py, test_uploads.py and test_batch_limits.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, BinaryIO, TypeVar

from fastapi import Depends, Request

from jitney.errors import ConfigError, Draining
from jitney.server.admission.calls import Call
from jitney.server.batches import limits
from jitney.server.batches.batches import Batches
from jitney.server.batches.database import DiskError
from jitney.server.batches.store import BatchStore
from jitney.server.error_object import NO_RETRY, Refusal, retry_headers
from jitney.server.service import Service

T = TypeVar("T")

_log = logging.getLogger("jitney.server.batches")


async def owner_of(request: Request) -> str:
    """The name of the key that a call came with."""
    # Async: on a thread of its own it would wait for one.
    return Call.of(request.scope).caller.name


Owner = Annotated[str, Depends(owner_of)]


async def query_store(
    batches: Batches,
    query: Callable[[BatchStore], T | None],
    missing: tuple[str, str],
    without_store: T | None = None,
) -> T:
    """What the store says. Raises Refusal if it cannot be reached, and with the code and message of
    `missing` if it says nothing."""
    if batches.thread.is_open:
        with disk_refusals():
            found = await batches.thread.call(query)
    elif await batches.is_there():
        raise _unavailable(batches)
    else:
        found = without_store
    if found is None:
        raise Refusal(*missing)
    return found


async def open_store(batches: Batches) -> None:
    """Open the store if it is not. Raises Refusal."""
    try:
        await batches.open()
    except (ConfigError, OSError) as error:
        _log.warning("Files and batches cannot be taken: %s", error)
        raise _unavailable(batches) from None


@contextmanager
def disk_refusals() -> Iterator[None]:
    """Turn a failure of the disk into a refusal."""
    try:
        yield
    except DiskError as error:
        _log.warning("A call for files or batches was refused: %s", error)
        if not error.is_full:
            raise away() from None
        message = "The server's disk is full, or cannot be used now; try again later."
        raise Refusal("disk_full", message, headers=NO_RETRY) from None


async def pieces_of(file: BinaryIO) -> AsyncIterator[bytes]:
    """The content of a file, which is closed then."""
    # Async, so that the file is closed as soon as the client leaves.
    with file:
        while piece := await asyncio.to_thread(file.read, limits.READ_BYTES):
            yield piece


def enter(service: Service, request: Request) -> str:
    """Count a call that brings work; the name of its key."""
    if service.admission.is_draining:
        raise Draining("The server is shutting down.")
    caller = Call.of(request.scope).caller
    caller.enter()
    return caller.name


def idempotency_key(request: Request) -> str | None:
    """What tells a call that is sent again from a new one. Raises Refusal."""
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= limits.IDEMPOTENCY_KEY_CHARACTERS_MAX:
        message = f"Idempotency-Key has 1 to {limits.IDEMPOTENCY_KEY_CHARACTERS_MAX} characters."
        raise Refusal("invalid_value", message, param="Idempotency-Key")
    return key


def _unavailable(batches: Batches) -> Refusal:
    """The store is there and not open: nobody can say what is in it."""
    if batches.is_waiting:
        return away()
    message = "The server's folder of jobs cannot be used; whoever runs the server can see why."
    return Refusal("jobs_unavailable", message, headers=NO_RETRY)


def away() -> Refusal:
    """The store, or its disk, will be back."""
    message = "The server's folder of jobs cannot be reached at the moment; try again later."
    return Refusal("jobs_unavailable", message, headers=retry_headers(limits.STORE_S))
