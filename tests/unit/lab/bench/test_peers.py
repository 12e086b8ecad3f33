"""Peers that are installed answer a small load with as many tokens as were asked for."""

import asyncio
from pathlib import Path

import pytest

from jitney.models.gguf_vocabulary import read_vocabulary
from jitney_lab.bench.drive import drive
from jitney_lab.bench.http_target import HttpTarget, served_model
from jitney_lab.bench.peers.libraries import text_tokens
from jitney_lab.bench.peers.server_process import free_port, running_server
from jitney_lab.bench.peers.servers import Room, llama_servers
from jitney_lab.bench.timing import RequestTimes
from jitney_lab.bench.workload import fixed
from tests.backends_for_tests import needs

START_S = 120.0
"""Less than pytest allows a test, so that a failure says why."""

LOAD = fixed(3, 8, 4, seed=1, clients=2)


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few thousand weights, written on the spot."""
    models = pytest.importorskip("tests.models_for_tests", reason="needs the gguf package")
    path: Path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    models.write_tiny_gguf(path)
    return path


def test_llama_server_of_the_wheel(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xllamacpp")
    monkeypatch.delenv("LLAMA_SERVER", raising=False)
    plans = llama_servers(tiny_gguf, Room(slots=2, tokens_each=64))
    plan = next(each for each in plans if "wheel" in each.name)
    port = free_port()

    async def asked(target: HttpTarget) -> list[RequestTimes]:
        async with target.client() as client:
            return await drive(LOAD, lambda job: target.ask(client, job))

    with running_server(plan.on(port), port, start_s=START_S) as address:
        target = HttpTarget(
            base_url=address,
            model=served_model(address, None),
            seed=1,
            extra_body=dict(plan.extra_body),
        )
        requests = asyncio.run(asked(target))
    assert [each.error for each in requests] == [None] * 3
    assert [each.completion_count for each in requests] == [4] * 3


def test_openvino_genai_in_process(tiny_gguf: Path) -> None:
    needs("openvino", threads=1)
    genai = pytest.importorskip("jitney_lab.bench.peers.genai")
    peer = genai.GenAi(tiny_gguf, 2, 256)
    assert peer._vocabulary == text_tokens(len(read_vocabulary(tiny_gguf).tokens))
    assert peer.rate(LOAD) > 0


def test_prompts_are_of_tokens_that_the_model_has() -> None:
    """Guards small vocabularies: a token beyond the weights is an error, or nonsense."""
    assert text_tokens(49_152) == range(100, 49_152)
    assert text_tokens(60) == range(30, 60)
