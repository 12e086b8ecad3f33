"""`jitney serve`: serves a model over OpenAI's HTTP interface, until it is stopped. Main thread."""

import errno
import json
import logging
import socket
from collections.abc import Callable

from jitney.cli.opening import loading
from jitney.cli.verbs import ServeOptions
from jitney.config import Key, Resolved, ServeSettings, for_serving
from jitney.config.machine import is_local
from jitney.errors import ConfigError
from jitney.extensions import load
from jitney.loading.compose import assemble
from jitney.server import limits
from jitney.server.application import Application, read_keys
from jitney.server.http.connections import listen
from jitney.server.http.line_writer import STDOUT, LineWriter, LogWriter
from jitney.server.lifecycle import Lifecycle
from jitney.server.service import Loaded, Service

_log = logging.getLogger("jitney.server")

QUESTION = "Why is the sky blue?"


def call(options: ServeOptions, resolved: Resolved) -> None:
    """Run the command."""
    settings, serving = for_serving(resolved), resolved.serving
    log = show_log()
    try:
        keys = read_keys(serving)
        check_replicas(serving)
        with bind(serving.host, serving.port) as listener:
            _warn_if_exposed(serving.host, keys)
            with loading(settings, yes=options.yes):
                # One engine, or a fleet of replicas.
                is_one = serving.replicas is None
                assembly = assemble(settings) if is_one else load("assemble")(settings, serving)
            try:
                serve(assembly, serving, keys, listener, log)
            finally:
                assembly.close(0.0)
    finally:
        # The log comes before the sentence that says why the server ended.
        log.flush()


def check_replicas(serving: ServeSettings) -> None:
    """Refuse settings of replicas that do not fit together. Raises ConfigError."""
    if serving.replicas is not None:
        load("check")(serving)
        return
    for name in ("ray_address", "max_replicas"):
        if getattr(serving, name) is not None:
            raise ConfigError(f"{name} is for replicas; give --replicas as well.")


def serve(
    assembly: Loaded,
    serving: ServeSettings,
    keys: tuple[Key, ...],
    listener: socket.socket,
    log: LogWriter,
) -> None:
    """Serve on this socket until stopped. Raises EngineStopped if the engine ended by itself."""
    application = Application(assembly, serving, keys)
    service = application.service
    application.monitor.metrics.attach_log(lambda: log.lines.dropped_count)
    # A `LineWriter` does not block if nobody reads.
    output = LineWriter(STDOUT, "{} lines were dropped".format)

    def started() -> None:
        application.start()
        announce(service, listener, output.put)

    try:
        Lifecycle(service, application.app).run(listener, started)
    finally:
        application.close()
        output.wait_written(limits.LOG_END_S_MAX)


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens at this address. Connections wait until the server runs.

    Two sockets may be bound to one port, but only one can listen. So it listens at once: a second
    server then fails before it has loaded a model.
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
        raise _listen_error(host, port, error) from None
    return listener


def _listen_error(host: str, port: int, error: OSError) -> ConfigError:
    # These two are about the port, all others about the address.
    other = "--port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
    return ConfigError(
        f"{host} port {port} cannot be listened on: {error.strerror}; give another {other}."
    )


def announce(service: Service, listener: socket.socket, say: Callable[[str], None]) -> None:
    """Say where the server is, and how to call it."""
    address = url_of(listener)
    say(f"jitney serves {service.model_name} at {address}")
    say(f"  page  {address}/")
    say(f"  try   {curl_line(address, service)}")
    say(f"  room  {room_of(service)}")
    if service.engine.settings.wait_s is None:
        say("  note  strategy is static: a call waits for others until a group is full, however")
        say("        long that takes; --max-wait-ms limits it")


def room_of(service: Service) -> str:
    """How long a sequence may be, and how much memory all of them share."""
    kv_tokens = service.engine.backend.traits.kv_tokens
    return f"sequences of up to {service.model_len_max:,} tokens, {kv_tokens:,} in memory together"


def url_of(listener: socket.socket) -> str:
    """An address that a person on this machine can open."""
    host, port = listener.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def curl_line(address: str, service: Service) -> str:
    """A command that works when a person pastes it."""
    path, body = "/v1/completions", {"prompt": QUESTION, "max_tokens": 64}
    if service.template is not None:
        path = "/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64}
    key = "" if service.keys.is_open else "-H 'Authorization: Bearer KEY' "
    kind = "-H 'Content-Type: application/json'"
    return f"curl {address}{path} {key}{kind} -d '{json.dumps(body)}'"


def show_log() -> LogWriter:
    """Send the log to standard error, one line for each request. It does not block if unread."""
    log = LogWriter()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", handlers=[log]
    )
    logging.captureWarnings(capture=True)
    for name in ("uvicorn.error", "httpx2"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return log


def _warn_if_exposed(host: str, keys: tuple[Key, ...]) -> None:
    if not is_local(host) and not keys:
        _log.warning(
            "Anyone who can reach %s may call: there is no key; set JITNEY_API_KEY, or give "
            "--api-key-file",
            host,
        )
