"""What the page is made of, over HTTP: files, policy, keys, state, and the recorder's trace."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jitney.backends.fake.backend import FakeSettings
from jitney.cli.main import main
from jitney.cli.trace import count_events, fetch_trace
from jitney.config import Key
from jitney.errors import ConfigError, SetupError
from jitney.server.observe.chrome_trace import trace_slices
from jitney.server.observe.recorder import Recorder, Viewer
from jitney.server.page import FILES
from tests.e2e.server.harness import (
    WAIT_S,
    Running,
    World,
    check_error,
    read_all,
    running,
    wait_until,
)

KEY = "first-key"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A quick server without keys."""
    with running(World()) as one:
        yield one


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    """A server with a key."""
    with running(
        World(backend=FakeSettings(eos_period=0), keys=(Key(name="one", secret=KEY),))
    ) as one:
        yield one


@pytest.mark.parametrize("path", sorted(FILES))
def test_files_come_with_a_policy_that_runs_nothing_else(server: Running, path: str) -> None:
    """Guards the page: no inline script, no foreign source, and no frame around it."""
    response = server.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"].split(";")[0] == FILES[path][1].split(";")[0]
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    again = server.get(path, **{"if-none-match": response.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_the_page_asks_nobody_else_for_anything() -> None:
    """Guards machines without a network, and the privacy of those who look."""
    folder = Path(__file__).parents[3] / "src" / "jitney" / "server" / "page"
    for name, _ in FILES.values():
        text = (folder / name).read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, name
        assert "innerHTML" not in text, name


def test_files_need_no_key_and_everything_else_does(locked: Running) -> None:
    """Guards what is shown: the page must load to ask for a key, and shows nothing before."""
    for path in FILES:
        assert locked.get(path).status_code == 200, path
    for path in ("/health", "/ready"):
        assert locked.get(path).json() == {"status": "ok"}, "a probe has no key"
        with locked.client() as client:
            assert client.head(path).status_code == 200, path
    for path in ("/page/state", "/page/requests/x", "/debug/trace", "/metrics"):
        assert locked.get(path).status_code == 401, path
        assert locked.get(path, authorization=f"Bearer {KEY}").status_code in (200, 404), path


def test_the_state_tells_ticks_once_and_requests_when_asked(server: Running) -> None:
    """Guards the page against what it has seen already."""
    server.complete("hello there", max_tokens=6)
    state = server.get("/page/state?requests=true").json()
    assert state["stats"]["completed_requests"] >= 1
    assert state["requests"][0]["words"].endswith("it stopped at its limit of tokens.")
    assert [kind for kind, _, _ in state["requests"][0]["phases"]][-1] == "generating"
    last = state["ticks"][-1][0]
    later = server.get(f"/page/state?after={last}").json()
    assert later["ticks"] == []
    assert "requests" not in later


def test_a_request_is_told_in_detail_and_an_unknown_one_is_not_found(server: Running) -> None:
    """Guards the timeline of one request."""
    reply = server.complete("hello there", max_tokens=6).json()
    details = server.get(f"/page/requests/{reply['id']}").json()
    assert details["completion_tokens"] == reply["usage"]["completion_tokens"]
    assert details["prompt_tokens"] == reply["usage"]["prompt_tokens"]
    assert details["spans"]
    error = check_error(server.get("/page/requests/none"), 404)
    assert error["code"] == "request_not_found"


@pytest.mark.parametrize("after", ["-1", "x", "99999999999999999999"])
def test_a_strange_tick_number_is_refused_in_a_sentence(server: Running, after: str) -> None:
    """Guards the state against numbers that are none."""
    response = server.get(f"/page/state?after={after}")
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "after"


def test_one_trace_is_made_at_a_time(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards memory: a trace is tens of megabytes, and whoever asks twice is told to wait."""
    is_making, may_end = threading.Event(), threading.Event()

    def slow(recorder: Recorder, now: float, viewer: Viewer, *, is_whole: bool) -> Iterator[bytes]:
        is_making.set()
        assert may_end.wait(WAIT_S), "nobody let it end"
        yield from trace_slices(recorder, now, viewer, is_whole=is_whole)

    monkeypatch.setattr("jitney.server.page.page_routes.trace_slices", slow)
    statuses: list[int] = []
    first = threading.Thread(target=lambda: statuses.append(server.get("/debug/trace").status_code))
    first.start()
    assert is_making.wait(WAIT_S), "no trace was begun"
    second = server.get("/debug/trace")
    assert check_error(second, 429)["code"] == "trace_under_way"
    assert second.headers["retry-after"]
    assert server.get("/health").status_code == 200, "it is not made on the event loop"
    may_end.set()
    first.join(WAIT_S)
    assert statuses == [200]
    assert server.get("/debug/trace").status_code == 200


def test_whoever_leaves_a_trace_or_does_not_read_it_makes_room_for_the_next(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Guards the one place there is for a trace."""

    def endless(
        recorder: Recorder, now: float, viewer: Viewer, *, is_whole: bool
    ) -> Iterator[bytes]:
        while True:
            yield b" " * 65_536

    with monkeypatch.context() as patch:
        patch.setattr("jitney.server.page.page_routes.trace_slices", endless)
        with server.connect() as leaving:
            leaving.sendall(b"GET /debug/trace HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert leaving.recv(4096).startswith(b"HTTP/1.1 200 ")
        patch.setattr("jitney.server.limits.TRACE_S_MAX", 0.2)
        with server.connect() as unread:
            wait_until(lambda: _asks_again(server, unread), "the place is kept by who left")
            assert b"HTTP/1.1 200 " in read_all(unread)
    wait_until(lambda: server.get("/debug/trace").status_code == 200, "the place is kept")
    assert "Traceback" not in caplog.text


def _asks_again(server: Running, connection: socket.socket) -> bool:
    """Whether a trace is begun on this connection; refusals are read to their end."""
    connection.sendall(b"GET /debug/trace HTTP/1.1\r\nHost: localhost\r\n\r\n")
    head = connection.recv(17, socket.MSG_PEEK)
    if head.startswith(b"HTTP/1.1 200 "):
        return True
    connection.recv(65_536)
    return False


def test_what_is_no_trace_is_not_written(tmp_path: Path) -> None:
    """Guards a file that was there before: only a trace may take its place."""
    for content in (b"<html>", b"[]", b'{"traceEvents": 5}', b"\xff"):
        with pytest.raises(SetupError, match="not a trace"):
            count_events(content, "http://127.0.0.1:1")
    assert count_events(b'{"traceEvents": [1, 2]}', "http://127.0.0.1:1") == 2


def test_the_command_fetches_the_trace(
    server: Running, locked: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards `jitney trace`, with a key, with that of the environment, and without."""
    monkeypatch.setenv("JITNEY_API_KEY", f"{KEY},another")
    assert main(["trace", "--url", locked.url, "-o", str(tmp_path / "trace.json")]) == 0
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    server.complete("hello there", max_tokens=6)
    document = json.loads(fetch_trace(server.url, None))
    assert any(event["name"].startswith("tick ") for event in document["traceEvents"])
    assert json.loads(fetch_trace(locked.url, KEY))["traceEvents"]
    with pytest.raises(ConfigError, match="--api-key"):
        fetch_trace(locked.url, None)
    with pytest.raises(ConfigError, match="does not know this key"):
        fetch_trace(locked.url, "wrongwrong")
    with pytest.raises(SetupError, match="--url"):
        fetch_trace("http://127.0.0.1:9", None)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_key_of_the_environment_is_advised_only_where_it_is_sent(
    locked: Running, host: str
) -> None:
    """Guards whoever sets JITNEY_API_KEY for another machine, where it is not sent."""
    with pytest.raises(ConfigError, match="give --api-key") as refused:
        fetch_trace(f"http://{host}:{locked.port}", None)
    assert ("JITNEY_API_KEY" in str(refused.value)) == (host == "127.0.0.1")
