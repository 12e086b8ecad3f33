"""Several engines behind one endpoint, on one machine or on a Ray cluster.

    progress           what one request has made so far, over the engines that ran it
    routing            which replica is expected to give the first token soonest
    replica_count      how many replicas a load needs
    replica_messages   what the ingress and the replicas say to each other
    replica_engine     one engine, as a replica
    overview           all replicas, as one ingress last saw them
    fleet              the engines as one: what the server uses in place of an engine
    own_ray            a Ray that is started here, closed to everybody else
    replica_port       a port that Serve opens, kept on loopback
    on_ray             replicas on Ray Serve
    serving            a fleet for `jitney serve --replicas`
    serve_app          `app`, for Ray's own commands

Nothing below this package imports it, and only `on_ray`, `replica_port` and `serve_app` import Ray.
"""

import importlib
from typing import Any  # Any: the application of Ray Serve


def __getattr__(name: str) -> Any:
    """`app` is made when it is asked for, since Ray is needed for it."""
    if name == "app":
        return importlib.import_module("jitney_cluster.serve_app").app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
