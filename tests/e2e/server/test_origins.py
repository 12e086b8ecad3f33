"""Pages of other origins: without a key or permission they change nothing here (row 39)."""

from pathlib import Path

import httpx
import pytest

from jitney.config import Key, ServeSettings
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import MODEL, Running, World, check_error
from tests.e2e.server.test_rows_http import paths

EVIL = {"origin": "https://evil.example"}
SECRET = "a-secret-of-the-tests"
BODY = {"prompt": "a", "max_tokens": 1}
UPLOAD = (
    b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 1000000000\r\n\r\n"
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
)
SAFE = ("GET", "HEAD", "OPTIONS")


def complete(server: Running, headers: dict[str, str]) -> httpx.Response:
    return server.post("/v1/completions", BODY, **headers)


def test_no_foreign_page_changes_anything(server: Running) -> None:
    """Guards the disk and the calls of who runs a server without keys: a form of any page reaches
    it without being asked. Routes that are added later are found by walking all of them."""
    walked = [each for each in paths(server) if each[0] not in SAFE]
    assert {"/v1/files", "/v1/batches", "/v1/requests/x/pause"} <= {path for _, path in walked}
    unknown = [("POST", "/nowhere"), ("PUT", "/v1/files"), ("POST", "/health")]
    with server.client() as client:
        for method, path in walked + unknown:
            reply = client.request(method, path, headers=EVIL)
            if path.startswith("/v1/messages"):
                assert reply.status_code == 403, path
                error = reply.json()["error"]
                assert error["type"] == "permission_error", path
            else:
                error = check_error(reply, 403)
                assert error["code"] == "origin_not_allowed", (method, path)
            assert "--cors-origin" in error["message"]


def test_a_foreign_upload_is_refused_before_it_is_read(server: Running) -> None:
    """Guards the disk: 767 MiB of a page were stored in 22 s."""
    assert server.raw(UPLOAD).startswith(b"HTTP/1.1 403 ")
    assert server.get("/v1/files").json()["data"] == []
    assert server.batches is not None
    assert not list(server.batches.thread.folder.rglob("*.partial"))


@pytest.mark.parametrize(
    ("headers", "is_foreign"),
    [
        ({}, False),
        ({"origin": "http://localhost:8000"}, False),
        ({"origin": "https://localhost:8000"}, False),
        ({"origin": "http://LOCALHOST:8000", "sec-fetch-site": "same-origin"}, False),
        # The page behind a proxy that changes the Host; pages cannot set this header.
        ({"origin": "https://chat.example", "sec-fetch-site": "same-origin"}, False),
        ({"origin": "null", "sec-fetch-site": "same-origin"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "https://evil.example"}, True),
        ({"origin": "http://localhost:8001"}, True),
        ({"origin": "http://localhost"}, True),
        ({"origin": "http://localhost:8000.evil.example"}, True),
        ({"origin": "http://evil.example/localhost:8000"}, True),
        ({"origin": "localhost:8000"}, True),
        ({"origin": "null"}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "a new word"}, True),
        ({"origin": "http://localhost:8001", "sec-fetch-site": "same-site"}, True),
        ({"origin": "http://localhost:8000", "sec-fetch-site": "cross-site"}, True),
    ],
)
def test_who_is_foreign(server: Running, headers: dict[str, str], is_foreign: bool) -> None:
    """Guards programs and the page itself, and tells another port of this machine from them."""
    answer = complete(server, {"host": "localhost:8000", **headers})
    if is_foreign:
        check_error(answer, 403)
    else:
        assert answer.status_code == 200, answer.text


def test_reading_is_left_to_the_browser(server: Running) -> None:
    """Guards links: a GET changes nothing, and the browser hides its answer from other pages."""
    answer = server.get("/v1/models", **EVIL)
    assert answer.status_code == 200
    with server.client() as client:
        preflight = {**EVIL, "access-control-request-method": "POST"}
        asked = client.options("/v1/chat/completions", headers=preflight)
    for each in (answer, asked):
        assert "access-control-allow-origin" not in each.headers


@pytest.mark.parametrize("allowed", ["https://good.example", "*"])
def test_row_39_an_allowed_origin_calls_and_deletes(
    start: Start, tmp_path: Path, allowed: str
) -> None:
    """Guards OpenAI's client in a browser: it sends headers of its own, and reads ours. Guards
    pages whose origin was allowed: they may delete the files that they uploaded."""
    settings = ServeSettings(served_model_name=(MODEL,), cors_origin=(allowed,))
    server = start(World(settings=settings, jobs_dir=tmp_path / "jobs"))
    good = {"origin": "https://good.example", "sec-fetch-site": "cross-site"}
    answer = complete(server, good)
    assert answer.headers["access-control-allow-origin"] == allowed
    for name in ("x-request-id", "retry-after-ms"):
        assert name in answer.headers["access-control-expose-headers"]
    assert complete(server, EVIL).status_code == (200 if allowed == "*" else 403)
    with server.client() as client:

        def preflight(path: str, method: str, origin: str = good["origin"]) -> httpx.Response:
            headers = {
                "origin": origin,
                "access-control-request-method": method,
                "access-control-request-headers": "authorization,content-type,x-stainless-os",
            }
            return client.options(path, headers=headers)

        for path, method in (("/v1/chat/completions", "POST"), ("/v1/files/x", "DELETE")):
            asked = preflight(path, method)
            assert asked.status_code == 204, asked.text
            assert asked.headers["access-control-allow-origin"] == allowed
            assert method in asked.headers["access-control-allow-methods"]
            assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
        check_error(preflight("/v1/models", "PUT"), 405)
        if allowed != "*":
            evil = preflight("/v1/models", "GET", EVIL["origin"])
            assert "access-control-allow-origin" not in evil.headers
            assert check_error(evil, 403)["code"] == "origin_not_allowed"
        check_error(client.delete("/v1/files/x", headers=good), 404)
        assert client.options("/v1/models").status_code == 405


def test_a_right_key_is_permission_enough(start: Start) -> None:
    """Guards clients with a key behind a proxy that answers preflights: no page can know a key."""
    server = start(World(keys=(Key(name="one", secret=SECRET),)))
    assert complete(server, {**EVIL, "authorization": f"Bearer {SECRET}"}).status_code == 200
    check_error(complete(server, {**EVIL, "authorization": "Bearer wrong"}), 401)
    check_error(complete(server, EVIL), 401)
