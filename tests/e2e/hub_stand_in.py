"""A stand-in of the hub on loopback: as much of its HTTP as `huggingface_hub` uses, and its moods.

Serves repositories out of memory from a thread, and writes down every request that it gets. Its
moods are those of the real one and of the way there: gated, cut connections, wrong bytes, errors.
"""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40
_API = re.compile(r"/api/models/([^/]+/[^/]+)/revision/([^/]+)")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass(slots=True)
class HubStandIn:
    """The repositories and moods; tests set them, the thread of a connection reads them."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    status: int | None = None
    """What every request gets, while the hub is down."""
    knows_tokens: bool = True
    gated: set[str] = field(default_factory=set)
    token: str | None = None
    """What opens the gated ones."""
    in_git: set[str] = field(default_factory=set)
    """Files that are too small for large-file storage, and have no sha256."""
    longer: dict[str, int] = field(default_factory=dict)
    """The sizes of files that have zeros behind their content. Only parts of them can be had."""
    damaged: set[str] = field(default_factory=set)
    """Files of which one byte is changed on the way."""
    cuts: dict[str, list[int]] = field(default_factory=dict)
    """After how many bytes each answer for a file is cut off; later ones are whole."""
    broken: set[str] = field(default_factory=set)
    """Files that a GET gets status 500 for."""
    at_content: Callable[[], None] = lambda: None
    """Called when the content of a file is asked for."""
    at_cut: Callable[[], None] = lambda: None
    """Called before a connection is cut."""
    seen: list[Seen] = field(default_factory=list)
    sent_bytes: int = 0
    """Bytes of the content of files that were sent."""
    url: str = ""

    def contents(self) -> list[Seen]:
        """The requests for the content of a file."""
        return [each for each in self.seen if each.method == "GET" and "/resolve/" in each.path]

    def digest(self, repository: str, file: str) -> str:
        """The name of a file's content: its sha256, or what git would call it."""
        content = self.repositories[repository][file]
        if file in self.in_git:
            return hashlib.sha1(content, usedforsecurity=False).hexdigest()
        return hashlib.sha256(content).hexdigest()


@contextmanager
def standing_in() -> Iterator[HubStandIn]:
    """A stand-in that listens on a port of its own until the end of the block."""
    hub = HubStandIn()
    server = _Server(("127.0.0.1", 0), _answering(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked has left: that is part of the tests."""


def _answering(hub: HubStandIn) -> type[BaseHTTPRequestHandler]:
    class Answering(_Answering):
        stand_in = hub

    return Answering


class _Answering(BaseHTTPRequestHandler):
    """One connection."""

    stand_in: HubStandIn
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def log_message(self, format: str, *arguments: object) -> None:
        """What came is in `seen`."""

    def _answer(self, *, has_body: bool) -> None:
        hub, path = self.stand_in, unquote(urlsplit(self.path).path)
        authorization = self.headers.get("authorization")
        hub.seen.append(Seen(self.command, path, self.headers.get("range"), authorization))
        listed, resolved = _API.fullmatch(path), _RESOLVE.fullmatch(path)
        repository = (listed or resolved or [None, ""])[1]
        if hub.status is not None:
            self._refuse(hub.status, "")
        elif authorization is not None and not hub.knows_tokens:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif repository not in hub.repositories:
            # The real one says so to whoever has no token, for what is private and what is not.
            self._refuse(401, "RepoNotFound")
        elif repository in hub.gated and authorization != f"Bearer {hub.token}":
            self._refuse(403 if authorization else 401, "GatedRepo")
        elif listed is not None:
            self._list(repository)
        elif resolved is not None and resolved[3] in hub.repositories[repository]:
            self._send(repository, resolved[3], has_body=has_body)
        else:
            self._refuse(404, "EntryNotFound")

    def _refuse(self, status: int, code: str, told: str = "") -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", told)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _list(self, repository: str) -> None:
        files = self.stand_in.repositories[repository]
        siblings = [self._sibling(repository, name, content) for name, content in files.items()]
        told = {"id": repository, "sha": COMMIT, "private": False, "siblings": siblings}
        body = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _sibling(self, repository: str, name: str, content: bytes) -> dict[str, object]:
        size = self.stand_in.longer.get(name, len(content))
        sibling: dict[str, object] = {"rfilename": name, "size": size, "blobId": "0" * 40}
        if name not in self.stand_in.in_git:
            digest = self.stand_in.digest(repository, name)
            sibling["lfs"] = {"size": size, "sha256": digest, "pointerSize": 134}
        return sibling

    def _send(self, repository: str, name: str, *, has_body: bool) -> None:
        hub = self.stand_in
        content = hub.repositories[repository][name]
        start = whole = 0
        if has_body:
            hub.at_content()
            if name in hub.broken:
                self._refuse(500, "")
                return
            if name in hub.damaged:
                content = content[:-1] + bytes([content[-1] ^ 1])
            asked = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("range") or "")
            size = hub.longer.get(name, len(content))
            if asked is None and name in hub.longer:
                self._refuse(500, "")
                return
            if asked is not None and name not in hub.in_git:
                start, whole = int(asked[1]), size
                end = min(int(asked[2]) + 1, size) if asked[2] else size
                content = content[:end].ljust(end if name in hub.longer else 0, b"\0")
        self.send_response(206 if whole else 200)
        if whole:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{whole}")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hub.digest(repository, name)}"')
        self.send_header("X-Linked-Size", str(len(hub.repositories[repository][name])))
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if has_body:
            self._write(name, content[start:])

    def _write(self, name: str, content: bytes) -> None:
        cuts = self.stand_in.cuts.get(name)
        try:
            if not cuts:
                self.wfile.write(content)
                self.stand_in.sent_bytes += len(content)
                return
            self.wfile.write(content[: cuts.pop(0)])
            self.wfile.flush()
            self.stand_in.at_cut()
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # whoever asked has left
        self.close_connection = True
