"""The commands `jitney bench` and `jitney plan`, found by `jitney` through their entry point."""
