"""What measures jitney and plans with it: `jitney bench` and `jitney plan`.

    bench   measures speed, stalls and overhead, in process and over HTTP
    plan    simulates a load with the real scheduler, and recommends settings and replicas
    cli     the two commands, which `jitney` finds by their entry point

It imports `jitney`; nothing of `jitney` imports it.
"""
