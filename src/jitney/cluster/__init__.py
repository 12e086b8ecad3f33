"""Several engines behind one endpoint, on one machine or on a Ray cluster.

    progress    what one request has made so far, over the engines that ran it
    routing     which replica is expected to give the first token soonest
    replica_messages   what the ingress and the replicas say to each other
    fleet       the engines as one: what the server uses in place of an engine
    replica     one engine on Ray Serve

Nothing below this package imports it, and only `jitney.cluster.on_ray` and `replica` import Ray.
"""
