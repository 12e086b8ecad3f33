"""The port that Ray Serve opens for each replica, kept on loopback where all of Ray is.

Imports Ray. Nobody calls the port: orders go through Ray's own processes. But Serve opens it on
all interfaces, and has no setting for that.

Tests: tests/e2e/cluster/test_on_ray.py.
"""

import ipaddress
from typing import Any  # Any: servers of gRPC

import ray
from ray.serve._private import replica

ALL_INTERFACES = "[::]"


def keep_on_loopback() -> None:
    """Called in a replica's process, before Serve opens the port. Changes Serve in this process."""
    host = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(host).is_loopback:
        return
    open_port = replica.add_port_to_grpc_server

    def open_on_loopback(server: Any, address: str) -> int:
        assert ALL_INTERFACES in address, f"Serve opens another port than before: {address}"
        own = f"[{host}]" if ":" in host else host
        return int(open_port(server, address.replace(ALL_INTERFACES, own)))

    replica.add_port_to_grpc_server = open_on_loopback
