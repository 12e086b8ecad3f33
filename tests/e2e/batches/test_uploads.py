"""Files over HTTP: what is stored, what is refused, and that nothing of a refused file stays."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import httpx
import openai
import pytest
from openai import OpenAI

from tests.e2e.batches.batch_client import client_of, jsonl, line, refusal, submit, upload
from tests.e2e.server.harness import WAIT_S, Running, World, check_error, running, wait_until

BOUNDARY = "a-boundary"
FORM = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
MANY_BYTES = 3_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(World(jobs_dir=tmp_path_factory.mktemp("served") / "jobs")) as made:
        yield made


def stored(server: Running) -> list[str]:
    assert server.batches is not None
    names = {path.name for path in (server.batches.thread.folder / "files").iterdir()}
    return sorted(names - {"store"})


def test_a_file_is_kept_to_the_byte_until_it_is_deleted(client: OpenAI, server: Running) -> None:
    """Guards content: any bytes, also what looks like a boundary, come back as they were."""
    content = bytes(range(256)) * 8000 + b"\r\n--" + b"\r\n--x--\r\n" + "é\u2028".encode()
    file = upload(client, content, "dir/näme.jsonl")
    assert (file.object, file.bytes, file.purpose) == ("file", len(content), "batch")
    assert (file.filename, file.status) == ("näme.jsonl", "processed")
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content
    assert client.files.delete(file.id).deleted
    for asked in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            asked(file.id)
    assert file.id not in stored(server)


def test_files_are_listed_in_pages_and_by_purpose(client: OpenAI) -> None:
    """Guards `after`, `limit`, `order` and `purpose`."""
    made = [upload(client, b"x", f"{number}.jsonl").id for number in range(5)]
    listed = [each.id for each in client.files.list(limit=2, order="asc")]
    assert listed[-5:] == made
    assert [each.id for each in client.files.list(limit=2)] == listed[::-1]
    assert [each.id for each in client.files.list(purpose="batch")] == listed[::-1]
    assert list(client.files.list(purpose="batch_output")) == []


def test_an_input_in_use_is_not_deleted(client: OpenAI) -> None:
    """Guards a batch against the loss of its input."""
    batch = submit(client, [line(f"c{each}", max_tokens=2000) for each in range(300)])
    with refusal(400, "file_in_use"):
        client.files.delete(batch.input_file_id)
    client.batches.cancel(batch.id)
    wait_until(
        lambda: client.batches.retrieve(batch.id).status == "cancelled", "it was not cancelled"
    )
    assert client.files.delete(batch.input_file_id).deleted


def form(*parts: tuple[str, bytes], is_closed: bool = True) -> bytes:
    """A form as it goes over the wire."""
    made = b"".join(
        b"--%b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n"
        % (BOUNDARY.encode(), head.encode(), content)
        for head, content in parts
    )
    return made + (b"--%b--\r\n" % BOUNDARY.encode() if is_closed else b"")


PURPOSE = ('name="purpose"', b"batch")
FILE = ('name="file"; filename="a.jsonl"', b"x")
EXPIRY = ('name="expires_after[seconds]"', b"9")


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        (form(FILE), "missing_required_parameter", "purpose"),
        (form(PURPOSE), "missing_required_parameter", "file"),
        (form(('name="purpose"', b"fine-tune"), FILE), "invalid_value", "purpose"),
        (form(('name="purpose"', b"x" * 5000), FILE), "invalid_value", "purpose"),
        (form(PURPOSE, ('name="file"', b"x")), "invalid_type", "file"),
        (form(PURPOSE, FILE, FILE), "invalid_value", "file"),
        (form(PURPOSE, FILE, ('name="more"', b"")), "unknown_parameter", "more"),
        (form(PURPOSE, FILE, EXPIRY), "unsupported_parameter", "expires_after"),
        (form(PURPOSE, FILE, is_closed=False), "invalid_value", None),
        (b"no form at all", "invalid_value", None),
        (b"", "invalid_value", None),
    ],
)
def test_a_wrong_form_is_refused_in_a_sentence(
    server: Running, content: bytes, code: str, param: str | None
) -> None:
    """Guards the disk: what is not taken leaves nothing behind."""
    before = stored(server) if (server.batches and server.batches.thread.is_open) else []
    with server.client() as client:
        error = check_error(client.post("/v1/files", content=content, headers=FORM), 400, param)
    assert error["code"] == code
    assert stored(server) == before


def test_what_is_no_form_is_refused(server: Running) -> None:
    """Guards the type of the body."""
    for kind in ("application/json", "multipart/form-data", "multipart/form-data; boundary=é"):
        with server.client() as client:
            reply = client.post(
                "/v1/files", content=b"{}", headers={b"content-type": kind.encode()}
            )
        check_error(reply, 415)


def test_a_client_that_leaves_in_the_middle_leaves_nothing(server: Running) -> None:
    """Guards the disk against half files."""
    upload_one(server)
    before = stored(server)
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: {FORM['content-type']}\r\nContent-Length: {MANY_BYTES}\r\n\r\n"
    )
    with server.connect() as connection:
        connection.sendall(head.encode() + form(PURPOSE)[:-16] + b"\r\n")
        connection.sendall(b'--a-boundary\r\nContent-Disposition: form-data; name="file"; ')
        connection.sendall(b'filename="a"\r\n\r\n' + b"x" * (MANY_BYTES // 2))
        wait_until(lambda: len(stored(server)) > len(before), "nothing of it was written")
    wait_until(lambda: stored(server) == before, "half a file is kept")
    assert server.get("/health").status_code == 200


def test_a_client_that_leaves_a_download_leaves_no_open_file(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the files that a process may open: none waits for the next collection of garbage."""
    with client_of(server) as client:
        file = upload(client, b"x" * 10 * MANY_BYTES)
    assert server.batches is not None
    contents, opened = server.batches.thread.store.content, list[BinaryIO]()
    usual = contents.open_content

    def watched(file_id: str) -> BinaryIO:
        opened.append(usual(file_id))
        return opened[-1]

    monkeypatch.setattr(contents, "open_content", watched)
    head = f"GET /v1/files/{file.id}/content HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    gc.disable()
    try:
        for _ in range(5):
            with server.silent(head) as connection:
                assert connection.recv(1)
        wait_until(lambda: all(each.closed for each in opened), "a file is still open")
    finally:
        gc.enable()
    assert len(opened) == 5


def upload_one(server: Running) -> None:
    with client_of(server) as client:
        upload(client, b"x")


def test_a_server_that_stops_takes_no_file(tmp_path: Path) -> None:
    """Guards a shutdown: it does not wait for files on their way."""
    with running(World(jobs_dir=tmp_path / "jobs")) as server:
        upload_one(server)
        server.service.drain()
        with server.client() as client:
            reply = client.post("/v1/files", content=form(PURPOSE, FILE), headers=FORM)
        check_error(reply, 503)


def test_files_arrive_beside_each_other(server: Running) -> None:
    """Guards order: several files at once are each complete."""
    contents = [jsonl([line(f"{number}-{each}") for each in range(2000)]) for number in range(4)]

    def sent_and_read(content: bytes) -> bytes:
        with client_of(server) as client:
            return bytes(client.files.content(upload(client, content).id).read())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(sent_and_read, contents, timeout=WAIT_S)) == contents


def test_the_document_names_the_endpoints(server: Running) -> None:
    """Guards programs that read /openapi.json."""
    paths = httpx.get(f"{server.url}/openapi.json", timeout=WAIT_S).json()["paths"]
    names = {"/v1/files", "/v1/files/{file_id}/content", "/v1/batches/{batch_id}/cancel"}
    assert names <= set(paths)
