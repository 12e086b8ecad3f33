"""Bounds of files and batches: each is refused by name, in a sentence, and others go on."""

import contextlib
import socket
from pathlib import Path

import pytest

from jitney.config import Key
from jitney.server import limits as server_limits
from jitney.server.batches import limits
from jitney.server.batches.stages import BatchBounds
from tests.e2e.batches.batch_client import (
    FIRST,
    OTHER,
    client_of,
    line,
    refusal,
    submit,
    two_keys,
    upload,
)
from tests.e2e.server.harness import Running, World, check_error, read_all, running, wait_until
from tests.e2e.server.pace import StillClock

HEAD = (
    "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n"
    "Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {}\r\n\r\n"
)
PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'


def test_a_file_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the disk: by its header before it comes, and by its bytes where there is no header."""
    monkeypatch.setattr(limits, "FILE_BYTES_MAX", 100_000)
    with running(World(jobs_dir=tmp_path / "jobs")) as server, client_of(server) as client:
        assert upload(client, b"x" * 100_000).bytes == 100_000
        with refusal(413, "request_too_large"):
            upload(client, b"x" * 100_001)
        # The length is known from the header: nothing has to be sent.
        answer = server.raw(HEAD.format("x", 10**12).encode())
        assert answer.startswith(b"HTTP/1.1 413 ")
        with server.client() as plain:
            pieces = [PART, *[b"x" * 50_000] * 10, b"\r\n--b--\r\n"]
            kind = {"content-type": "multipart/form-data; boundary=b"}
            check_error(plain.post("/v1/files", content=iter(pieces), headers=kind), 413)
        assert len(client.files.list().data) == 1


def test_a_key_has_so_many_files_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards other keys: one of them cannot fill the store, and may delete and go on."""
    monkeypatch.setattr(limits, "FILES_MAX", 3)
    monkeypatch.setattr(limits, "KEY_BYTES_MAX", 10_000)
    with two_keys(tmp_path / "jobs") as (_, first, other):
        large = upload(first, b"x" * 9_000)
        with refusal(429, "storage_limit") as error:
            upload(first, b"x" * 2_000)
        assert error.value.response.headers["x-should-retry"] == "false"
        upload(other, b"x" * 9_000)
        first.files.delete(large.id)
        for _ in range(3):
            upload(first, b"x" * 2_000)
        with refusal(429, "too_many_files"):
            upload(first, b"x")


@pytest.mark.parametrize(
    ("bound", "value", "code"),
    [("FILES_MAX", 1, "too_many_files"), ("KEY_BYTES_MAX", 2_000_000, "storage_limit")],
)
def test_what_was_stored_while_a_file_came_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, value: int, code: str
) -> None:
    """Guards the bounds against files that come beside each other: the last one is refused."""
    monkeypatch.setattr(limits, bound, value)
    purpose = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    content = purpose + PART + b"x" * 1_900_000 + b"\r\n--b--\r\n"
    folder = tmp_path / "jobs" / "files"
    with running(World(jobs_dir=tmp_path / "jobs")) as server, client_of(server) as client:
        with server.connect() as slow:
            slow.sendall(HEAD.format("x", len(content)).encode() + content[:1_150_000])
            wait_until(lambda: len(_partial(folder)) == 1, "the upload has not begun")
            kept = upload(client, b"x" * 700_000)
            slow.sendall(content[1_150_000:])
            answer = read_all(slow)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert code.encode() in answer
        assert [each.id for each in client.files.list()] == [kept.id]
        assert {path.name for path in folder.iterdir()} == {kept.id, "store"}


def test_all_files_together_have_a_bound(tmp_path: Path) -> None:
    """Guards the machine's disk: the bound of the setting holds over all keys."""
    bounds = BatchBounds(bytes_max=1_000_000)
    with two_keys(tmp_path / "jobs", jobs_bounds=bounds) as (_, first, other):
        upload(first, b"x" * 600_000)
        with refusal(429, "storage_limit") as error:
            upload(other, b"x" * 600_000)
        assert "--jobs-disk-limit" in error.value.message
        assert upload(other, b"x" * 10_000).bytes == 10_000


def test_only_so_many_files_come_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the server against slow uploads: of one key, and of all."""
    monkeypatch.setattr(limits, "UPLOADS_MAX", 3)
    monkeypatch.setattr(limits, "UPLOADS_KEY_MAX", 2)
    with two_keys(tmp_path / "jobs") as (server, first, other), contextlib.ExitStack() as stack:
        begun = [stack.enter_context(_begun(server, FIRST)) for _ in range(2)]
        folder = tmp_path / "jobs" / "files"
        wait_until(lambda: len(_partial(folder)) == 2, "the uploads have not begun")
        with refusal(429, "too_many_uploads"):
            upload(first, b"x")
        upload(other, b"x")
        stack.enter_context(_begun(server, OTHER))
        wait_until(lambda: len(_partial(folder)) == 3, "the upload has not begun")
        with refusal(429, "too_many_uploads"):
            upload(other, b"x")
        begun[0].close()
        wait_until(lambda: len(_partial(folder)) == 2, "its place is not free again")
        assert upload(first, b"x").bytes == 1


def _partial(folder: Path) -> list[Path]:
    return list(folder.glob("*.partial"))


def _begun(server: Running, key: str) -> socket.socket:
    """An upload that goes on for ever, and has a file already."""
    connection = server.connect()
    content = PART + b"x" * (limits.WRITE_BYTES + 100_000)
    # One that is too slow may be told so before all of it is sent.
    with contextlib.suppress(ConnectionError):
        connection.sendall(HEAD.format(key, 2 * len(content)).encode() + content)
    return connection


def test_a_file_that_comes_too_slowly_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards places: a client that stops sending is told, and leaves nothing behind."""
    monkeypatch.setattr(server_limits, "BODY_S_MAX", 0.3)
    monkeypatch.setattr(limits, "UPLOAD_BYTES_PER_S_MIN", 10**9)
    with running(World(jobs_dir=tmp_path / "jobs")) as server:
        with _begun(server, "x") as connection:
            answer = read_all(connection)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"too slowly" in answer
        assert {path.name for path in (tmp_path / "jobs" / "files").iterdir()} == {"store"}


def test_calls_count_once_against_the_rate_of_their_key(tmp_path: Path) -> None:
    """Guards the server against callers who do nothing but upload."""
    key = Key(name="first", secret=FIRST, requests_per_minute=3)
    with (
        running(World(jobs_dir=tmp_path / "jobs", keys=(key,), clock=StillClock())) as server,
        client_of(server, FIRST) as client,
    ):
        submit(client, [line("a")])
        upload(client, b"x")
        with refusal(429, "rate_limit_exceeded"):
            upload(client, b"x")
        # Looking is free.
        assert client.files.list().data
