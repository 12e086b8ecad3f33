"""`jitney serve`: serves a model over OpenAI's HTTP interface, until it is stopped. Main thread."""

import errno
import ipaddress
import json
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from jitney.cli.opening import loading
from jitney.cli.pull import fetch_model
from jitney.cli.verbs import ServeOptions
from jitney.cluster.serving import ClusterAssembly, assemble_cluster
from jitney.config import (
    Key,
    Resolved,
    ServeSettings,
    Settings,
    check_distinct,
    environment,
    load_keys,
)
from jitney.config.machine import jobs_folder
from jitney.config.resolve import DEFAULT
from jitney.errors import ConfigError
from jitney.jobs.database import DiskTrouble
from jitney.jobs.job_metrics import collect_jobs
from jitney.jobs.job_routes import make_batch_router, make_file_router
from jitney.jobs.jobs import Jobs
from jitney.jobs.line_asker import ServiceAsker
from jitney.jobs.stages import JobBounds
from jitney.loading.compose import Assembly, assemble
from jitney.server import limits
from jitney.server.app import create_app
from jitney.server.http.accepting import listen
from jitney.server.http.line_writer import STDOUT, LineWriter, LogWriter
from jitney.server.lifecycle import Lifecycle
from jitney.server.observe.monitor import Monitor
from jitney.server.service import Loaded, Service

_log = logging.getLogger("jitney.server")

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
QUESTION = "Why is the sky blue?"


def call(options: ServeOptions, resolved: Resolved) -> None:
    """Run the command."""
    settings, serving = _for_serving(resolved), resolved.serving
    log = show_log()
    try:
        keys = read_keys(serving)
        with bind(serving.host, serving.port) as listener:
            _warn_if_exposed(serving.host, keys)
            fetch_model(settings)
            with loading(settings):
                assembly = _assembled(settings, serving)
            try:
                serve(assembly, serving, keys, listener, log)
            finally:
                assembly.close(0.0)
    finally:
        # The log comes before the sentence that says why the server ended.
        log.flush()


def _assembled(settings: Settings, serving: ServeSettings) -> Assembly | ClusterAssembly:
    """One engine, or a fleet of replicas. Raises a SetupError."""
    if serving.replicas is not None:
        return assemble_cluster(settings, serving.replicas, serving.ray_address)
    if serving.ray_address is not None:
        raise ConfigError("ray_address is for replicas; give --replicas as well.")
    return assemble(settings)


def serve(
    assembly: Loaded,
    serving: ServeSettings,
    keys: tuple[Key, ...],
    listener: socket.socket,
    log: LogWriter,
) -> None:
    """Serve on this socket until stopped. Raises EngineStopped if the engine ended by itself."""
    settings = replace(
        serving,
        served_model_name=serving.served_model_name or (assembly.model_name,),
        allowed_host=allowed_hosts(serving, keys),
    )
    service = Service(assembly.engine, assembly.request_factory, assembly.template, settings, keys)
    monitor = Monitor(assembly.engine, service.model_name, otlp_endpoint=serving.otlp_endpoint)
    monitor.metrics.attach_log(lambda: log.lines.dropped_count)
    # A `LineWriter` does not block if nobody reads.
    output = LineWriter(STDOUT, "{} lines were dropped".format)
    jobs = open_jobs(service) if serving.enable_jobs else None
    try:
        routers = []
        if jobs is not None:
            routers = [make_file_router(service, jobs), make_batch_router(service, jobs)]
            monitor.metrics.attach_other(partial(collect_jobs, jobs))
        app = create_app(service, monitor, routers)

        def started() -> None:
            if jobs is not None:
                jobs.start()
            announce(service, listener, output.put)

        Lifecycle(service, app).run(listener, started)
    finally:
        if jobs is not None:
            jobs.close()
        monitor.close()
        output.wait_written(limits.LOG_END_S_MAX)


def open_jobs(service: Service) -> Jobs:
    """The work that may wait, with its store open if there is one. Raises ConfigError.

    Two servers of one user have the same folder by default. The second one does without, and so
    does one that cannot use that folder.
    """
    settings = service.settings
    bounds = JobBounds(bytes_max=settings.jobs_disk_limit)
    jobs = Jobs(settings.jobs_dir, ServiceAsker(service), bounds=bounds)
    try:
        jobs.open_if_there()
    except (ConfigError, OSError) as error:
        if settings.jobs_dir != jobs_folder(environment()):
            raise
        _log.warning("%s Files and batches are refused here (--jobs-dir)", error)
    except DiskTrouble as trouble:
        _log.warning("Files and batches wait for the disk: %s", trouble)
    return jobs


def read_keys(serving: ServeSettings) -> tuple[Key, ...]:
    """All keys, from flags and from the file. Raises ConfigError."""
    plain = tuple(
        Key(name=f"key-{at}", secret=secret) for at, secret in enumerate(serving.api_key, 1)
    )
    keys = plain
    if serving.api_key_file is not None:
        keys = (*plain, *load_keys(serving.api_key_file, environment()))
    # Keys of flags are called key-1 and so on, and a key of the file may have that name too.
    check_distinct(keys, "--api-key and --api-key-file together have")
    return keys


def allowed_hosts(serving: ServeSettings, keys: tuple[Key, ...]) -> tuple[str, ...]:
    """The names that the Host header may have; an empty list allows all.

    A page in a browser can make its own name lead to this machine. So a server without keys, on a
    loopback address, accepts only the names of this machine.
    """
    given = tuple(name.lower() for name in serving.allowed_host)
    if keys or not _is_local(serving.host):
        return given
    host = serving.host.lower()
    return tuple(dict.fromkeys((*LOCAL_HOSTS, f"[{host}]" if ":" in host else host, *given)))


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


def url_of(listener: socket.socket) -> str:
    """An address that a person on this machine can open."""
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"


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


def _for_serving(resolved: Resolved) -> Settings:
    """Run the backend in its own process by default: a crash of native code must not end us."""
    if resolved.sources["backend_process"] == DEFAULT:
        return replace(resolved.settings, backend_process=True)
    return resolved.settings


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _warn_if_exposed(host: str, keys: tuple[Key, ...]) -> None:
    if not _is_local(host) and not keys:
        _log.warning("Anyone who can reach %s may call: there is no key; give --api-key", host)
