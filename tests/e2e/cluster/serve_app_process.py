"""Serves `jitney.cluster:app` on a Ray of its own, as `serve run` does, until its input ends.

It says where others can join this Ray. Each line of input is a JSON object of settings: the
application is deployed with them, again and again under the same name, which is a rolling update.
"""

import json
import sys

import ray
from ray import serve

from jitney.cluster import app


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    """The command: the port for HTTP."""
    try:
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
        serve.start(http_options={"port": int(sys.argv[1])})
    except Exception:  # Ray raises all kinds where it does not start in its own time
        _say("unable")
        return
    _say(f"started {ray.get_runtime_context().gcs_address}")
    for line in sys.stdin:
        serve.run(app(json.loads(line)), name="jitney", route_prefix="/")
        _say("deployed")
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
