"""What a cluster promises, shown on a real Ray: streams that outlive machines, routing, cost.

    python -m benchmarks.cluster.kills      replicas and nodes killed under streams of known text
    python -m benchmarks.cluster.routing    our router against two of Ray Serve's
    python -m benchmarks.cluster.cost       one replica against one process; the ingress on one core

Each starts Ray nodes of its own on this machine (`nodes`), and `jitney serve` as a process of its
own (`fleet`). Linux only.
"""
