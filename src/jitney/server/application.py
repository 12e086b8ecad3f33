"""The whole HTTP application over an engine: the server, its metrics, files and batches.

`Application` is made before the event loop, on the main thread. `jitney serve` puts a socket in
front of it, and `jitney_cluster` the proxies of Ray Serve.

Tests: tests/unit/cli/test_serve.py and tests/e2e/server/test_service.py.
"""

import ipaddress
import logging
from dataclasses import replace
from functools import partial

from jitney.config import (
    Key,
    ServeSettings,
    check_distinct,
    environment,
    load_keys,
)
from jitney.config.machine import jobs_folder
from jitney.errors import ConfigError
from jitney.server.app import create_app
from jitney.server.batches.allowances import Allowances
from jitney.server.batches.answer_line import LineAnswerer
from jitney.server.batches.batch_metrics import collect_batches
from jitney.server.batches.batch_routes import make_batch_router, make_file_router
from jitney.server.batches.batches import Batches
from jitney.server.batches.database import DiskError, StoreTaken
from jitney.server.batches.stages import BatchBounds
from jitney.server.observe.monitor import Monitor
from jitney.server.service import Loaded, Service

_log = logging.getLogger("jitney.server")

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")


class Application:
    """The service, its routes, and the work that may wait. `close` comes last."""

    def __init__(
        self,
        loaded: Loaded,
        serving: ServeSettings,
        keys: tuple[Key, ...],
        *,
        waits_for_store: bool = False,
    ) -> None:
        """`waits_for_store`: a store that another server has is no mistake; it will be free."""
        settings = replace(
            serving,
            served_model_name=serving.served_model_name or (loaded.model_name,),
            allowed_host=allowed_hosts(serving, keys),
        )
        self.service = Service(
            loaded.engine, loaded.request_factory, loaded.template, settings, keys
        )
        self.batches = None
        if serving.jobs_dir is not None:
            self.batches = open_batches(self.service, waits_for_store=waits_for_store)
        self.monitor = Monitor(
            loaded.engine, self.service.model_name, otlp_endpoint=serving.otlp_endpoint
        )
        routers = []
        if self.batches is not None:
            routers = [
                make_file_router(self.service, self.batches),
                make_batch_router(self.service, self.batches),
            ]
            self.monitor.metrics.attach_other(partial(collect_batches, self.batches))
        self.app = create_app(self.service, self.monitor, routers)

    def start(self) -> None:
        """On the event loop: go on with the batches that are there."""
        if self.batches is not None:
            self.batches.start()

    async def stop(self) -> None:
        """On the event loop, where that goes on after `close`: run no more lines."""
        if self.batches is not None:
            await self.batches.stop()

    def close(self) -> None:
        """When the event loop has ended, or after `stop`."""
        if self.batches is not None:
            self.batches.close()
        self.monitor.close()


def open_batches(service: Service, *, waits_for_store: bool = False) -> Batches:
    """The work that may wait, with its store open if there is one. Raises ConfigError.

    Two servers of one user have the same folder by default. The second one does without, and so
    does one that cannot use that folder.
    """
    settings = service.settings
    assert settings.jobs_dir is not None, "There is a folder for them"
    bounds = BatchBounds(bytes_max=settings.jobs_disk_limit)
    allowances = Allowances(service.keys.known, service.clock)
    batches = Batches(
        settings.jobs_dir, LineAnswerer(service), bounds=bounds, allowances=allowances
    )
    batches.is_waiting = waits_for_store
    try:
        batches.open_if_there()
    except (ConfigError, OSError) as error:
        is_free_later = waits_for_store and isinstance(error, StoreTaken)
        if settings.jobs_dir != jobs_folder(environment()) and not is_free_later:
            raise
        _log.warning("%s Files and batches are refused here (--jobs-dir)", error)
    except DiskError as error:
        batches.is_waiting = True
        _log.warning("Files and batches wait for the disk: %s", error)
    return batches


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
    names = tuple(name.lower() for name in serving.allowed_host)
    if keys or not is_local(serving.host):
        return names
    host = serving.host.lower()
    return tuple(dict.fromkeys((*LOCAL_HOSTS, f"[{host}]" if ":" in host else host, *names)))


def is_local(host: str) -> bool:
    """Whether an address is that of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
