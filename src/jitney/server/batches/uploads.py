"""Receives files: `Uploads`. Event loop; the disk is written in other threads.

A file goes to the disk as it comes, and is never held whole. It is refused as soon as it is too
large: by its length, by what its key has stored, or by what the store may take. Nothing of a
refused file stays.

Tests: tests/e2e/batches/test_uploads.py and test_batch_limits.py.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request

from jitney.errors import Draining
from jitney.server import limits as server_limits
from jitney.server.batches import limits
from jitney.server.batches.content_files import ContentFile
from jitney.server.batches.database import NotBegun
from jitney.server.batches.multipart import BadForm, FormReader, PartBegin, boundary_of
from jitney.server.batches.rows import Purpose, StoredFile
from jitney.server.batches.store import BatchStore, FileUse, StoreThread
from jitney.server.error_object import NO_RETRY, ClientLeft, Refusal, retry_headers
from jitney.server.service import Service

_CLOSE = {"connection": "close"}
_AGAIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Upload:
    """One upload as it comes: the fields of its form, and its file, in pieces written together."""

    owner: str
    use: FileUse
    """What was stored when it began."""
    content: ContentFile
    file_bytes: int = 0
    """How much of the file has come."""
    filename: str = ""
    current: str = ""
    """The name of the field that began last."""
    _fields: set[str] = field(default_factory=set)
    _purpose: bytes = b""
    _unwritten: bytearray = field(default_factory=bytearray)

    def begin(self, part: PartBegin) -> None:
        """The next field begins. Raises Refusal for one that is not taken."""
        name = part.name[: server_limits.NAME_CHARACTERS_MAX]
        if name in self._fields:
            raise _refused("invalid_value", f"{name} stands twice in the form.", name)
        self._fields.add(name)
        if name.startswith("expires_after"):
            message = "expires_after is not supported: a file stays until it is deleted."
            raise _refused("unsupported_parameter", message, "expires_after")
        if name not in ("purpose", "file"):
            raise _refused("unknown_parameter", f"There is no field {name}.", name)
        if name == "file":
            if part.filename is None:
                raise _refused("invalid_type", "file must be a file with a name.", "file")
            self.filename = _plain_name(part.filename)
        self.current = name

    def add_purpose(self, content: bytes) -> None:
        """More of the field `purpose`. Raises Refusal."""
        self._purpose += content
        if len(self._purpose) > limits.FORM_FIELD_BYTES_MAX:
            raise _refused("invalid_value", "purpose is too long.", "purpose")

    async def write(self, content: bytes) -> None:
        """More of the file."""
        self.file_bytes += len(content)
        self._unwritten += content
        if len(self._unwritten) >= limits.WRITE_BYTES:
            await self._flush()

    async def end(self) -> None:
        """All has come: write the rest of the file, if the form is complete. Raises Refusal."""
        for name in ("purpose", "file"):
            if name not in self._fields:
                raise _refused("missing_required_parameter", f"{name} is missing.", name)
        if self._purpose != Purpose.BATCH.value.encode():
            message = "purpose must be batch: files have no other use here."
            raise _refused("invalid_value", message, "purpose")
        await self._flush()
        await asyncio.to_thread(self.content.sync)

    async def _flush(self) -> None:
        unwritten, self._unwritten = bytes(self._unwritten), bytearray()
        await asyncio.to_thread(self.content.write, unwritten)


class Uploads:
    """The files on their way in. `bytes_max` is what the store may take of the disk."""

    def __init__(
        self, service: Service, thread: StoreThread, now: Callable[[], int], bytes_max: int | None
    ) -> None:
        self._service = service
        self._thread = thread
        self._now = now
        self._bytes_max = bytes_max
        self._counts: Counter[str] = Counter()
        self._arriving: Counter[str] = Counter()
        """Bytes of each key that have come and are not stored yet."""

    async def receive(self, request: Request, owner: str) -> StoredFile:
        """Store the file of an upload. Raises Refusal, DiskError, Draining and ClientLeft."""
        try:
            reader = FormReader(boundary_of(request.headers.get("content-type", "")))
        except BadForm:
            message = (
                "The body must be a form: send `Content-Type: multipart/form-data; boundary=...`."
            )
            raise Refusal("unsupported_media_type", message, headers=_CLOSE) from None
        self._check_length(request)
        with self._counted(owner):
            use = await self._thread.call(lambda store: store.use_of(owner))
            self._check_use(use, 0, 0)
            upload = _Upload(owner, use, ContentFile(self._thread.store.content))
            try:
                await self._read(request, reader, upload)
            except BaseException:
                # A thread may still be writing for it.
                await asyncio.to_thread(upload.content.discard)
                raise
            finally:
                self._arriving[owner] -= upload.file_bytes
            return await self._keep(upload)

    async def store(self, owner: str, filename: str, content: bytes) -> StoredFile:
        """Store a file that is at hand. Raises Refusal and DiskError."""
        with self._counted(owner):
            use = await self._thread.call(lambda store: store.use_of(owner))
            self._check_use(use, len(content), len(content))
            file = ContentFile(self._thread.store.content)
            try:
                await asyncio.to_thread(file.write, content)
                await asyncio.to_thread(file.sync)
            except BaseException:
                await asyncio.to_thread(file.discard)
                raise
            return await self._keep(_Upload(owner, use, file, filename=filename))

    def _check_length(self, request: Request) -> None:
        length = request.headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > limits.FILE_BYTES_MAX + limits.FORM_BYTES:
            raise _too_large()
        # A file takes longer than any other body.
        allowed_s = server_limits.BODY_S_MAX + server_limits.LINGER_S_MAX
        allowed_s += limits.FILE_BYTES_MAX / limits.UPLOAD_BYTES_PER_S_MIN
        request.scope.get("extensions", {}).get("jitney.allow_body", float)(allowed_s)

    @contextmanager
    def _counted(self, owner: str) -> Iterator[None]:
        """One more file is on its way. Raises Refusal."""
        is_alone = self._service.keys.is_open
        key_max = limits.UPLOADS_MAX if is_alone else limits.UPLOADS_KEY_MAX
        if self._counts.total() >= limits.UPLOADS_MAX or self._counts[owner] >= key_max:
            message = "As many files are on their way here as may be; try again later."
            headers = {**_CLOSE, **retry_headers(_AGAIN_S)}
            raise Refusal("too_many_uploads", message, headers=headers)
        self._counts[owner] += 1
        try:
            yield
        finally:
            self._counts[owner] -= 1

    async def _read(self, request: Request, reader: FormReader, upload: _Upload) -> None:
        """Read the whole form, until the file is complete and on the disk."""
        async for piece in self._pieces(request, upload):
            try:
                events = reader.feed(piece)
            except BadForm as error:
                raise _refused("invalid_value", str(error), None) from None
            for event in events:
                if isinstance(event, PartBegin):
                    upload.begin(event)
                elif upload.current == "purpose":
                    upload.add_purpose(event)
                else:
                    await self._take(event, upload)
        if not reader.is_over:
            raise _refused("invalid_value", "The form has no end.", None)
        await upload.end()

    async def _take(self, content: bytes, upload: _Upload) -> None:
        """Take more of the file. Raises Refusal where it is too much."""
        count, owner = len(content), upload.owner
        if upload.file_bytes + count > limits.FILE_BYTES_MAX:
            raise _too_large()
        self._check_use(upload.use, self._arriving[owner] + count, self._arriving.total() + count)
        self._arriving[owner] += count
        await upload.write(content)

    def _check_use(self, use: FileUse, more: int, more_of_all: int) -> None:
        """Whether one more file, and so many bytes of this key and of all, may be stored.

        Raises Refusal.
        """
        code = "storage_limit"
        if use.file_count >= limits.FILES_MAX:
            code = "too_many_files"
            message = f"This key has {use.file_count} files, as many as it may have; delete some."
        elif use.file_bytes + more > limits.KEY_BYTES_MAX:
            count = limits.KEY_BYTES_MAX
            message = f"The files of this key may have {count} bytes together; delete some."
        elif self._bytes_max is not None and use.bytes_of_all + more_of_all > self._bytes_max:
            message = (
                f"The files of all callers have {self._bytes_max} bytes, as many as they may have "
                "here; delete some, or tell whoever runs the server (--jobs-disk-limit)."
            )
        else:
            return
        raise Refusal(code, message, headers={**_CLOSE, **NO_RETRY})

    async def _pieces(self, request: Request, upload: _Upload) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Refusal if it is too slow."""
        clock = self._service.clock
        started_at = clock.now()
        received = 0
        while True:
            if self._service.admission.is_draining:
                raise Draining("The server is shutting down.")
            allowed_s = server_limits.BODY_S_MAX + upload.file_bytes / limits.UPLOAD_BYTES_PER_S_MIN
            try:
                async with asyncio.timeout(allowed_s - (clock.now() - started_at)):
                    message = await request.receive()
            except TimeoutError:
                reason = "The file arrives too slowly."
                raise Refusal("request_timeout", reason, headers=_CLOSE) from None
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece = message.get("body", b"")
            yield piece
            received += len(piece)
            if received - upload.file_bytes > limits.FORM_BYTES + server_limits.PIECE_BYTES_MAX:
                raise _refused("invalid_value", "The form has too much beside its file.", None)
            if not message.get("more_body", False):
                return

    async def _keep(self, upload: _Upload) -> StoredFile:
        """Note the file, which is on the disk, and give it its name."""
        content = upload.content
        file = content.record(upload.owner, upload.filename, Purpose.BATCH, self._now())

        def add(store: BatchStore) -> None:
            # Since this file began to come, others may have been stored; none can be from here on.
            self._check_use(store.use_of(file.owner), file.bytes, file.bytes)
            store.add_file(file)
            content.name()

        try:
            await self._thread.call(add)
        except (Refusal, NotBegun):
            await asyncio.to_thread(content.discard)
            raise
        # Where the disk failed, nobody knows what it has: the content stays until the next start.
        return file


def _plain_name(name: str) -> str:
    """A name for people: the last part of a path, without characters that control something."""
    last = name.replace("\\", "/").rsplit("/", 1)[-1]
    printable = "".join(each for each in last if each.isprintable())
    return printable[: limits.FILENAME_CHARACTERS_MAX] or "upload"


def _refused(code: str, message: str, param: str | None) -> Refusal:
    return Refusal(code, message, param=param, headers=_CLOSE)


def _too_large() -> Refusal:
    message = f"The file is larger than {limits.FILE_BYTES_MAX} bytes, which is the limit."
    return Refusal("request_too_large", message, param="file", headers=_CLOSE)
