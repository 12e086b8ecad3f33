"""`jitney.cluster:app`: replicas and a server for Ray's own commands. Imports Ray.

    serve run jitney.cluster:app model=MODEL.gguf replicas=2
    serve deploy file.yaml

The keys are the settings of `jitney serve`, and `ingresses`. HTTP comes from Serve's proxies. Each
ingress is a whole server over the same replicas: routes, errors, keys and limits are those of
`jitney serve`.

Tests: tests/unit/cluster/test_serve_app.py and tests/e2e/cluster/test_serve_app.py.
"""

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Any  # Any: Ray has no types for handles and applications

from ray import serve
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from jitney.config import Key, ServeSettings, Settings, environment, for_serving, resolve
from jitney.config.forms import read_named, whole_number
from jitney.errors import ConfigError
from jitney.loading.compose import model_key
from jitney.server.application import Application, read_keys
from jitney_cluster.on_ray import ONGOING_MAX, RayDispatch, own_host, replica_deployment
from jitney_cluster.serving import ClusterAssembly, replica_bounds

INGRESSES_MAX = 64


class RayIngress:
    """A server over all replicas. Serve makes it, and calls it on one event loop."""

    def __init__(
        self, replicas: Any, settings: Settings, serving: ServeSettings, ingress_count: int
    ) -> None:
        logging.getLogger("jitney").setLevel(logging.INFO)
        keys = tuple(_part_of_rates(each, ingress_count) for each in read_keys(serving))
        dispatch = RayDispatch(replicas, model_key(settings))
        _, most = replica_bounds(serving)
        self._assembly = ClusterAssembly(dispatch, settings, most, own_host(), lambda: None)
        self._application = Application(self._assembly, serving, keys, waits_for_store=True)
        self._application.start()

    def __serve_build_asgi_app__(self) -> Any:
        """What Serve calls for each request."""
        http, other = self._application.app, Starlette()

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            # Our application knows HTTP alone. Serve also tells it of its life, and of websockets:
            # an empty one closes these, and has nothing to begin.
            await (http if scope["type"] == "http" else other)(scope, receive, send)

        return answer

    async def check_health(self) -> None:
        """A server is as healthy as its replicas, and those are replaced by themselves."""

    async def __del__(self) -> None:
        """Serve calls it on the same event loop, and awaits it."""
        await self._application.stop()
        self._application.close()
        self._assembly.close(0.0)


def app(args: dict[str, Any]) -> Any:
    """The application for these settings. Raises ConfigError."""
    values = dict(args)
    file = values.pop("config", None)
    ingress_count = read_named(
        whole_number(1, INGRESSES_MAX), "ingresses", values.pop("ingresses", 1), ""
    )
    resolved = resolve(values, None if file is None else Path(file), environment(), given_as="key")
    settings, serving = for_serving(resolved), _for_ray(resolved.serving, ingress_count)
    bounds = replica_bounds(serving)
    replicas = replica_deployment(settings, bounds, drain_s=serving.shutdown_timeout)
    ingress = serve.deployment(
        serve.ingress()(RayIngress),
        name="Ingress",
        num_replicas=ingress_count,
        max_ongoing_requests=ONGOING_MAX,
        graceful_shutdown_timeout_s=serving.shutdown_timeout,
        ray_actor_options={"num_cpus": 0},
    )
    return ingress.bind(replicas, settings, serving, ingress_count)


def _for_ray(serving: ServeSettings, ingress_count: int) -> ServeSettings:
    """Raises ConfigError for settings that have no meaning here."""
    defaults = {each.name: each.default for each in fields(ServeSettings)}
    for name in ("port", "ray_address"):
        if getattr(serving, name) != defaults[name]:
            raise ConfigError(f"{name} is Ray's own here: see its http_options; leave it out.")
    if ingress_count > 1:
        # The store of files and batches has one user at a time.
        return replace(serving, jobs_dir=None)
    return serving


def _part_of_rates(key: Key, ingress_count: int) -> Key:
    """Each ingress counts by itself, so it gives out its part of a key's rates."""
    rates = {name: getattr(key, name) for name in ("requests_per_minute", "tokens_per_minute")}
    parts = {name: rate / ingress_count for name, rate in rates.items() if rate is not None}
    return replace(key, **parts)
