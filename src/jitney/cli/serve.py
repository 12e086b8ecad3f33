"""`jitney serve`: a model behind OpenAI's HTTP interface, until it is told to stop. Main thread."""

import errno
import ipaddress
import json
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jitney.cli.flags import Given, resolved
from jitney.cli.opening import loading
from jitney.cli.pull import fetch_model
from jitney.cli.verbs import ServeOptions
from jitney.config import (
    Key,
    Resolved,
    ServeSettings,
    Settings,
    check_apart,
    environment,
    load_keys,
)
from jitney.config.resolve import DEFAULT
from jitney.errors import ConfigError
from jitney.loading.compose import Assembly, assemble
from jitney.server import limits
from jitney.server.app import create_app
from jitney.server.http.accepting import listen
from jitney.server.http.line_writer import STDOUT, LineWriter, LogWriter
from jitney.server.lifecycle import Lifecycle
from jitney.server.observe.monitor import Monitor
from jitney.server.service import Service

_log = logging.getLogger("jitney.server")

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
QUESTION = "Why is the sky blue?"


def call(options: ServeOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    found = resolved(given.with_model(options.served))
    settings, serving = _for_serving(found), found.serving
    log = show_log()
    try:
        keys = read_keys(serving)
        with bind(serving.host, serving.port) as listener:
            _warn_if_exposed(serving.host, keys)
            fetch_model(settings)
            with loading(settings):
                assembly = assemble(settings)
            try:
                serve(assembly, serving, keys, listener, log)
            finally:
                assembly.close(0.0)
    finally:
        # What was logged stands before the sentence that says why it ended, if there is one.
        log.flush()
    return 0


def serve(
    assembly: Assembly,
    serving: ServeSettings,
    keys: tuple[Key, ...],
    listener: socket.socket,
    log: LogWriter,
) -> None:
    """Serve on this socket until told to stop. Raises EngineStopped when the engine gave up."""
    settings = replace(
        serving,
        served_model_name=serving.served_model_name or (assembly.model_name,),
        allowed_host=allowed_hosts(serving, keys),
    )
    service = Service(assembly.engine, assembly.request_factory, assembly.template, settings, keys)
    monitor = Monitor(assembly.engine, service.model_name, otlp_endpoint=serving.otlp_endpoint)
    monitor.metrics.attach_log(lambda: log.dropped_count)
    # Nobody has to read what is said here either.
    output = LineWriter(STDOUT, "{} lines were dropped".format)
    try:
        app = create_app(service, monitor)
        Lifecycle(service, app).run(listener, partial(announce, service, listener, output.put))
    finally:
        monitor.close()
        output.wait_written(limits.LOG_END_S_MAX)


def read_keys(serving: ServeSettings) -> tuple[Key, ...]:
    """All keys, of flags and of the file. Raises ConfigError."""
    plain = tuple(
        Key(name=f"key-{at}", secret=secret) for at, secret in enumerate(serving.api_key, 1)
    )
    keys = plain
    if serving.api_key_file is not None:
        keys = (*plain, *load_keys(serving.api_key_file, environment()))
    # Keys of flags are called key-1 and so on, and a file may have one of that name.
    check_apart(keys, "--api-key and --api-key-file together have")
    return keys


def allowed_hosts(serving: ServeSettings, keys: tuple[Key, ...]) -> tuple[str, ...]:
    """Names that the server answers to; none are all.

    Without keys, a server on this machine only is at the mercy of any page in a browser whose
    name was made to lead here; so it answers to the names of this machine only.
    """
    given = tuple(name.lower() for name in serving.allowed_host)
    if keys or not _is_local(serving.host):
        return given
    host = serving.host.lower()
    return tuple(dict.fromkeys((*LOCAL_HOSTS, f"[{host}]" if ":" in host else host, *given)))


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at this address; whoever connects waits until it is served.

    Two may be bound to one port, and only one of them can listen: so it does from the start, and
    the other one knows before it has loaded a model.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError):
        raise ConfigError(f"There is no address {host}; give another --host.") from None
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listen(listener, limits.UNSENT_BYTES_MAX)
    except OSError as error:
        listener.close()
        raise _unlistened(host, port, error) from None
    return listener


def _unlistened(host: str, port: int, error: OSError) -> ConfigError:
    # The port is taken or not for us; anything else is about the address.
    other = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
    return ConfigError(
        f"{host} port {port} cannot be listened on: {error.strerror}; give another {other}."
    )


def announce(service: Service, listener: socket.socket, say: Callable[[str], None]) -> None:
    """Say where the server is, and how to ask it something."""
    address = url_of(listener)
    say(f"jitney serves {service.model_name} at {address}")
    say(f"  page  {address}/")
    say(f"  try   {curl_line(address, service)}")


def url_of(listener: socket.socket) -> str:
    """An address that a person on this machine can open."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


def curl_line(address: str, service: Service) -> str:
    """A command that works when it is pasted."""
    path, body = "/v1/completions", {"prompt": QUESTION, "max_tokens": 64}
    if service.template is not None:
        path = "/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
    key = "" if service.keys.is_open else "-H 'Authorization: Bearer KEY' "
    kind = "-H 'Content-Type: application/json'"
    return f"curl {address}{path} {key}{kind} -d '{json.dumps(body)}'"


def show_log() -> LogWriter:
    """Send the log to standard error, one line for each request, whether or not it is read."""
    log = LogWriter()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[log]
    )
    logging.captureWarnings(capture=True)
    for name in ("uvicorn.error", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return log


def _for_serving(found: Resolved) -> Settings:
    """A crash of native code must not end the server, unless someone wants it so."""
    if found.sources["backend_process"] == DEFAULT:
        return replace(found.settings, backend_process=True)
    return found.settings


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _warn_if_exposed(host: str, keys: tuple[Key, ...]) -> None:
    if not _is_local(host) and not keys:
        _log.warning("anyone who can reach %s may call: there is no key; give --api-key", host)
