"""llama-server on the same file, through the wheel `xllamacpp`, in a process of its own.

`python -m benchmarks.peer MODEL SLOTS` serves until its standard input closes and prints its
address; `Peer` starts that and sends it a load over HTTP, on loopback.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.load import Job


class Peer:
    """llama-server with so many slots."""

    def __init__(self, model: Path, slots: int, context_tokens: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peer", str(model), str(slots), str(context_tokens)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = ""
        while not line.startswith("address "):
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError("llama-server did not start")
        self._address = urlsplit(line.split()[1])

    def serve(self, jobs: Sequence[Job], at_once: int) -> float:
        """Seconds until all are answered, with so many open at a time."""
        waiting = list(jobs)[::-1]
        failures: list[str] = []
        lock = threading.Lock()

        def client() -> None:
            while True:
                with lock:
                    if not waiting or failures:
                        return
                    job = waiting.pop()
                try:
                    self._ask(job)
                except Exception as error:
                    with lock:
                        failures.append(repr(error))

        started = time.perf_counter()
        threads = [threading.Thread(target=client) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise RuntimeError(failures[0])
        return time.perf_counter() - started

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _ask(self, job: Job) -> None:
        connection = http.client.HTTPConnection(
            self._address.hostname or "127.0.0.1", self._address.port, timeout=600
        )
        body = {
            "prompt": list(job.prompt),
            "n_predict": job.completion_count,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        connection.request(
            "POST", "/completion", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = json.loads(connection.getresponse().read())
        connection.close()
        if answer.get("tokens_predicted") != job.completion_count:
            raise RuntimeError(f"llama-server made {answer.get('tokens_predicted')} tokens")


def _main() -> None:
    from xllamacpp import CommonParams, Server

    params = CommonParams()
    params.model.path = sys.argv[1]
    params.n_parallel = int(sys.argv[2])
    params.n_ctx = int(sys.argv[3])
    params.n_batch = 2048
    params.warmup = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 2
    server = Server(params)
    print("address", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _main()
