"""Bad HTTP, bad manners and bad luck, by the numbered rows of expected answers."""

import contextlib
import json
import logging
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitney.config import Key, ServeSettings
from jitney.server.application import allowed_hosts
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import MODEL, Running, World, check_error, read_all, running
from tests.e2e.server.processes import served

SECRET = "a-secret-of-the-tests"
BODY = {"prompt": "a", "max_tokens": 2}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server that wants a key, with all routes; the last two share what is cached."""
    keys = (
        Key(name="one", secret=SECRET),
        Key(name="two", secret=SECRET + "-2"),
        Key(name="three", secret=SECRET + "-3", scope="team"),
        Key(name="four", secret=SECRET + "-4", scope="team"),
    )
    with running(World(keys=keys, jobs_dir=tmp_path_factory.mktemp("locked") / "jobs")) as made:
        yield made


@pytest.fixture(autouse=True)
def _idle_after(server: Running, locked: Running) -> Iterator[None]:
    yield
    server.check_idle()
    locked.check_idle()


def paths(server: Running) -> list[tuple[str, str]]:
    """Every route that is registered, with each of its methods."""
    found = []
    for included in server.app.routes:
        router = getattr(included, "original_router", None)
        for route in [included] if router is None else router.routes:
            path = re.sub(r"\{[^}]*\}", "x", str(getattr(route, "path", "")))
            found += [(method, path) for method in sorted(getattr(route, "methods", None) or ())]
    return found


def test_row_37_every_route_wants_a_key(locked: Running) -> None:
    """Guards what is added later: a route without a key is found by walking all of them."""
    # Probes have no key.
    open_paths = {"/health", "/ready"}
    walked = paths(locked)
    assert {"/v1/completions", "/v1/files/x", "/v1/batches", "/metrics"} < {
        path for _, path in walked
    }
    with locked.client() as client:
        for method, path in walked:
            response = client.request(method, path)
            is_file = path == "/" or re.fullmatch(r"/page/\w+\.(css|js|svg)", path)
            if path in open_paths or is_file:
                # The page's files are the same for everyone and show nothing without a key.
                assert response.status_code != 401, path
                continue
            assert response.status_code == 401, (method, path)
            assert response.headers["www-authenticate"].startswith("Bearer"), path
        assert client.get("/nowhere").status_code == 401


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {SECRET}",
        SECRET,
        f"Bearer {SECRET}x",
        "Bearer a-secret",
    ],
)
def test_row_37_keys_that_do_not_open(locked: Running, header: str) -> None:
    """Guards the door."""
    headers = {"authorization": header} if header else {}
    response = locked.post("/v1/completions", BODY, **headers)
    assert check_error(response, 401)["type"] == "authentication_error"


def test_row_37_keys_that_open(locked: Running) -> None:
    """Guards those who may: the scheme in any case, and never a key in an address."""
    for scheme in ("Bearer", "bearer", "BEARER", "Bearer "):
        reply = locked.post("/v1/completions", BODY, authorization=f"{scheme} {SECRET}")
        assert reply.status_code == 200
    assert locked.get(f"/v1/models?api_key={SECRET}").status_code == 401
    assert locked.get("/v1/models", authorization="Bearer " + "x" * 10_000).status_code == 401


@pytest.mark.parametrize(
    ("flags", "is_warned"),
    [
        (("--host", "0.0.0.0"), True),
        (("--host", "0.0.0.0", "--api-key", SECRET), False),
        (("--host", "127.0.0.1"), False),
    ],
)
def test_row_37_a_server_that_anyone_may_call_says_so(
    tmp_path: Path, flags: tuple[str, ...], is_warned: bool
) -> None:
    """Guards the careless: told once by the command itself, and only where it is true."""
    with served(tmp_path, *flags) as server:
        log = server.log.read_text()
    assert log.count("Anyone who can reach 0.0.0.0 may call") == is_warned, log


@pytest.mark.parametrize("host", ["x/health?", "x/health#", "x#", "", "localhost/health"])
def test_row_38_hosts_that_look_like_paths(locked: Running, host: str) -> None:
    """Guards the key: what a Host header says never decides what is open, nor what is closed."""

    def status(path: str, *extra: str) -> bytes:
        lines = [f"GET {path} HTTP/1.1", f"Host: {host}", "Connection: close", *extra]
        return locked.raw(("\r\n".join(lines) + "\r\n\r\n").encode())[:13]

    assert status("/v1/models") == b"HTTP/1.1 401 "
    assert status("/v1/models", f"Authorization: Bearer {SECRET}") == b"HTTP/1.1 200 "
    assert status("/health") == b"HTTP/1.1 200 "


def test_row_38_no_host(locked: Running) -> None:
    """Guards the protocol: HTTP/1.1 wants a Host."""
    assert locked.raw(b"GET /health HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_row_39_names_that_were_made_to_lead_here(start: Start) -> None:
    """Guards a server on one's own machine against pages whose name was pointed at it."""
    hosts = allowed_hosts(ServeSettings(allowed_host=("My.Box",)), ())
    server = start(World(settings=ServeSettings(served_model_name=(MODEL,), allowed_host=hosts)))
    good = ("localhost", f"localhost:{server.port}", "127.0.0.1:1", "[::1]", "[::1]:8000", "my.box")
    with server.client() as client:
        for host in good:
            assert client.get("/v1/models", headers={"host": host}).status_code == 200, host
        for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil", "::1", "*"):
            refused = client.get("/v1/models", headers={"host": host})
            assert check_error(refused, 421)["code"] == "unknown_host", host


BARE = ["5\nhello\n0\n\n", "5;x\n", "5\rhello", "0\n\n"]
"""Chunks with a bare newline after a size. It was taken for half a line, and awaited for the time
of a body."""
SMUGGLED = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "Content-Length: -1\r\n\r\n",
    "Content-Length: abc\r\n\r\n",
    "Content-Length: " + "9" * 5000 + "\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    *(f"Transfer-Encoding: chunked\r\n\r\n{chunks}" for chunks in BARE),
    "X: a\nContent-Length: 0\r\n\r\n",
    "Content-Length: 0\n\n",
    "Content-Length: 0\r\n\n",
]


@pytest.mark.parametrize("rest", SMUGGLED)
def test_row_41_requests_of_two_meanings(server: Running, rest: str) -> None:
    """Guards proxies before us: where a request ends must be clear, or it ends the connection.
    test_hostile_heads.py has those that are refused before h11 reads them."""
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    answer = server.raw((head + rest).encode())
    assert answer.startswith(b"HTTP/1.1 400 "), answer[:200]
    assert b"connection: close" in answer.lower()
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["code"] in ("invalid_http", None)


@pytest.mark.parametrize("cut", range(1, 12))
def test_row_41_a_bare_newline_is_seen_wherever_packets_end(server: Running, cut: int) -> None:
    """Guards the same when a line comes in two pieces, and honest lines that do."""
    start = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    for last, status in ((b"X: abc\r\n\r\n", b"200"), (b"X: abc\n\r\n\r\n", b"400")):
        with server.connect() as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(start + last[:cut])
            # The event loop, which answers this, has read the first piece on the way.
            server.get("/health")
            # A refusal may come before the rest is sent.
            with contextlib.suppress(ConnectionError):
                connection.sendall(last[cut:])
            assert read_all(connection).startswith(b"HTTP/1.1 " + status)


def test_row_46_what_is_logged(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    """Guards the log: no line that a caller wrote, no prompt, no colour."""
    with caplog.at_level(logging.INFO, logger="jitney.server"):
        server.complete("a secret of the caller \x1b[31m", user="a\nperson\x1b[31m")
        server.get("/%0d%0aINFO%20forged%1b[31m")
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "/v1/completions" in text
    assert r"user='a\nperson\x1b[31m'" in text
    assert "secret of the caller" not in text
    assert "\x1b" not in text
    assert "\r" not in text


def test_row_47_prefixes_across_salts_and_keys(locked: Running) -> None:
    """Guards tenants: what another one has asked can be learnt from nothing."""
    prompt = "the same words, long enough to be a prefix that is worth something" * 4

    def cached(secret: str, salt: str | None = None) -> int:
        body = {"prompt": prompt, "max_tokens": 1, "cache_salt": salt}
        reply = locked.post("/v1/completions", body, authorization=f"Bearer {secret}")
        count = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert isinstance(count, int)
        return count

    assert cached(SECRET) == 0
    assert cached(SECRET) > 200
    assert cached(SECRET + "-2") == 0
    assert cached(SECRET, "salt") == 0
    assert cached(SECRET, "salt") > 200
    assert cached(SECRET + "-3") == 0
    assert cached(SECRET + "-4") > 200
    assert cached(SECRET + "-4", "salt") == 0


@pytest.mark.parametrize("given", ["x" * 65, "x" * 10_000, "a b", "é", ""])
def test_row_48_ids_that_are_not_sane(server: Running, given: str) -> None:
    """Guards logs and headers: a strange id is replaced by ours."""
    with server.client() as client:
        response = client.get("/health", headers=[(b"x-request-id", given.encode())])
        assert response.headers["x-request-id"].startswith("req-")
        response = client.get("/health", headers={"x-request-id": "mine-1"})
        assert response.headers["x-request-id"] == "mine-1"


def test_row_50_labels_of_metrics(server: Running) -> None:
    """Guards dashboards: no caller can make up a label."""
    server.get("/x%22%7D%201%0Aforged%7Ba=%22b")
    server.complete(model='"} 1\nforged 1')
    text = server.get("/metrics").text
    assert "forged" not in text
    assert "/v1/completions" in text
