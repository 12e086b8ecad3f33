"""`jitney.cluster:app` on a real Ray: Serve's proxies, a rolling update and another number."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.e2e.cluster.ray_process import RayProcess, SharedRay, stream

pytest.importorskip("ray", reason="Ray is not installed: it has no package for this machine")
pytestmark = pytest.mark.timeout(900)

STREAMS = 6
TOKENS = 400
SETTINGS = {"backend": "fake", "max_num_seqs": 8, "max_model_len": 1024, "jobs_dir": "none"}


@pytest.fixture(scope="module")
def ray_app(shared_ray: SharedRay) -> Iterator[RayProcess]:
    running = shared_ray.running()
    running.deploy(**SETTINGS, replicas=1)
    yield running
    shared_ray.close()


def test_errors_are_those_of_one_process(ray_app: RayProcess) -> None:
    wrong = httpx.post(f"{ray_app.address}/v1/completions", json={"prompt": ""}, timeout=100)
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "prompt"
    stranger = httpx.get(
        f"{ray_app.address}/v1/models", headers={"Host": "evil.example"}, timeout=100
    )
    assert stranger.status_code == 421
    assert "jitney:" in httpx.get(f"{ray_app.address}/metrics", timeout=100).text


def test_no_stream_notices_an_update_or_another_number_of_replicas(ray_app: RayProcess) -> None:
    """Guards change without loss: streams that began before an update are equal to others."""
    with ThreadPoolExecutor(STREAMS) as threads:
        seen = threading.Semaphore(0)
        expected = list(
            threads.map(lambda at: stream(ray_app.address, at, TOKENS, seen), range(STREAMS))
        )
        assert {used for _, used in expected} == {TOKENS}
        for changed in ({"replicas": 2, "max_num_seqs": 6}, {"replicas": 1}):
            seen = threading.Semaphore(0)
            reading = [
                threads.submit(stream, ray_app.address, at, TOKENS, seen) for at in range(STREAMS)
            ]
            for _ in range(STREAMS):
                assert seen.acquire(timeout=100)
            ray_app.deploy(**SETTINGS | changed)
            assert [each.result() for each in reading] == expected
