"""Several engines behind one endpoint, on one machine or on a Ray cluster.

    cluster_request    one request on its way, over the engines that run it
    attempts           one attempt after the other, until a request has ended
    request_events     what callers and observers of a request get
    routing            which replica is expected to give the first token soonest
    dispatch           the way to the replicas
    replica_messages   what the ingress and the replicas send to each other
    back_channel       the connections on which replicas send it
    replica_engine     one engine, as a replica
    replica_count      how many replicas a load needs
    overview           all replicas, as one ingress last saw them
    fleet              the engines as one: what the server uses in place of an engine
    own_ray            a Ray that is started here, closed to everybody else
    replica_port       a port that Serve opens, kept on loopback
    on_ray             replicas on Ray Serve
    serving            a fleet for `jitney serve --replicas`
    serve_app          `app`, for Ray's own commands
    ray_data           answers to the rows of a dataset

Nothing below this package imports it, and only `on_ray`, `replica_port` and `serve_app` import Ray.
"""
