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
from jitney.server.batches.database import NotBegun
from jitney.server.batches.file_table import ContentFile, FileTable
from jitney.server.batches.multipart import BadForm, FormReader, PartBegin, boundary_of
from jitney.server.batches.rows import Purpose, StoredFile
from jitney.server.batches.store import BatchStore, StoreThread
from jitney.server.error_object import NO_RETRY, ClientLeft, Refusal, retry_headers
from jitney.server.service import Service

_CLOSE = {"connection": "close"}
_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class _FileUse:
    """How many files one owner has stored, their bytes, and those of everybody together."""

    count: int
    bytes: int
    bytes_of_all: int


@dataclass(slots=True)
class _UploadForm:
    """The fields of an upload as they come."""

    purpose: bytes = b""
    filename: str | None = None
    current: str | None = None
    seen: set[str] = field(default_factory=set)

    def begin(self, part: PartBegin) -> None:
        """The next field begins. Raises Refusal for one that is not taken."""
        name = part.name[: server_limits.NAME_CHARACTERS_MAX]
        if name in self.seen:
            raise _refused("invalid_value", f"{name} stands twice in the form.", name)
        self.seen.add(name)
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
        self.purpose += content
        if len(self.purpose) > limits.FORM_FIELD_BYTES_MAX:
            raise _refused("invalid_value", "purpose is too long.", "purpose")

    def check(self) -> str:
        """The name of the file, if the form is complete. Raises Refusal."""
        for name in ("purpose", "file"):
            if name not in self.seen:
                raise _refused("missing_required_parameter", f"{name} is missing.", name)
        if self.purpose != Purpose.BATCH.value.encode():
            message = "purpose must be batch: files have no other use here."
            raise _refused("invalid_value", message, "purpose")
        assert self.filename is not None
        return self.filename


class _Sink:
    """The content of one file as it comes. Pieces are written together."""

    def __init__(self, files: FileTable) -> None:
        self.content = ContentFile(files)
        self.bytes = 0
        self._held = bytearray()

    async def write(self, content: bytes) -> None:
        self.bytes += len(content)
        self._held += content
        if len(self._held) >= limits.WRITE_BYTES:
            await self.flush()

    async def flush(self) -> None:
        held, self._held = bytes(self._held), bytearray()
        await asyncio.to_thread(self.content.write, held)


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
            message = "The body must be a form: send `Content-Type: multipart/form-data`."
            raise Refusal("unsupported_media_type", message, headers=_CLOSE) from None
        self._check_length(request)
        with self._counted(owner):
            use = await self._thread.call(lambda store: _use_of(store, owner))
            self._check_use(use, 0, 0)
            sink = _Sink(self._thread.store.files)
            try:
                filename = await self._read(request, reader, sink, owner, use)
                await asyncio.to_thread(sink.content.sync)
            except BaseException:
                sink.content.discard()
                raise
            finally:
                self._arriving[owner] -= sink.bytes
            return await self._keep(sink.content, owner, filename)

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

    async def _read(
        self, request: Request, reader: FormReader, sink: _Sink, owner: str, use: _FileUse
    ) -> str:
        """Read the whole form; the name of the file."""
        form = _UploadForm()
        async for piece in self._pieces(request, sink):
            try:
                events = reader.feed(piece)
            except BadForm as error:
                raise _refused("invalid_value", str(error), None) from None
            for event in events:
                if isinstance(event, PartBegin):
                    form.begin(event)
                elif form.current == "purpose":
                    form.add_purpose(event)
                else:
                    await self._take(event, sink, owner, use)
        if not reader.is_over:
            raise _refused("invalid_value", "The form has no end.", None)
        filename = form.check()
        await sink.flush()
        return filename

    async def _take(self, content: bytes, sink: _Sink, owner: str, use: _FileUse) -> None:
        """Take more of the file. Raises Refusal where it is too much."""
        count = len(content)
        if sink.bytes + count > limits.FILE_BYTES_MAX:
            raise _too_large()
        self._check_use(use, self._arriving[owner] + count, self._arriving.total() + count)
        self._arriving[owner] += count
        await sink.write(content)

    def _check_use(self, use: _FileUse, more: int, more_of_all: int) -> None:
        """Whether one more file, and so many bytes of this key and of all, may be stored.

        Raises Refusal.
        """
        code = "storage_limit"
        if use.count >= limits.FILES_MAX:
            code = "too_many_files"
            message = f"This key has {use.count} files, as many as it may have; delete some."
        elif use.bytes + more > limits.KEY_BYTES_MAX:
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

    async def _pieces(self, request: Request, sink: _Sink) -> AsyncIterator[bytes]:
        """The body as it comes. Raises Refusal if it is too slow."""
        clock = self._service.clock
        started_at = clock.now()
        form_bytes = 0
        while True:
            if self._service.admission.is_draining:
                raise Draining("The server is shutting down.")
            allowed_s = server_limits.BODY_S_MAX + sink.bytes / limits.UPLOAD_BYTES_PER_S_MIN
            try:
                async with asyncio.timeout(allowed_s - (clock.now() - started_at)):
                    message = await request.receive()
            except TimeoutError:
                reason = "The file arrives too slowly."
                raise Refusal("request_timeout", reason, headers=_CLOSE) from None
            if message["type"] == "http.disconnect":
                raise ClientLeft
            piece = message.get("body", b"")
            before = sink.bytes
            yield piece
            form_bytes += len(piece) - (sink.bytes - before)
            if form_bytes > limits.FORM_BYTES + server_limits.PIECE_BYTES_MAX:
                raise _refused("invalid_value", "The form has too much beside its file.", None)
            if not message.get("more_body", False):
                return

    async def _keep(self, content: ContentFile, owner: str, filename: str) -> StoredFile:
        """Note the file, which is on the disk, and give it its name."""
        file = content.record(owner, filename, Purpose.BATCH, self._now())
        try:
            await self._thread.call(lambda store: self._add(store, file))
        except (Refusal, NotBegun):
            content.discard()
            raise
        # Where the disk failed, nobody knows what it has: the content stays until the next start.
        return file

    def _add(self, store: BatchStore, file: StoredFile) -> None:
        """On the store's thread, so that no other file comes between the check and the row.

        Since this file began to come, others may have been stored. Raises Refusal.
        """
        self._check_use(_use_of(store, file.owner), file.bytes, file.bytes)
        store.files.add(file)
        store.files.name_content(file.id)


def _use_of(store: BatchStore, owner: str) -> _FileUse:
    return _FileUse(*store.files.use(owner), store.used_bytes())


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
