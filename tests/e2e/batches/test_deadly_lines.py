"""A text that ends the backend while it is tokenised: as a line, and as a call (row 52)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import InternalServerError, OpenAI

from jitney.backends.fake.backend import FakeBackend
from jitney.backends.process.client import ProcessBackend
from jitney.core.limits import FAILURES_MAX
from jitney.server.batches import limits
from tests.deadly_text import DEADLY, Deaths, deadly_text
from tests.e2e.batches.batch_client import client_of, custom_ids, ended, line, results, submit
from tests.e2e.server.harness import MODEL, WAIT_S, Running, World, running


@pytest.fixture
def deaths(tmp_path: Path) -> Iterator[Deaths]:
    with deadly_text(tmp_path / "custom") as made:
        yield made


@pytest.fixture
def server(deaths: Deaths, tmp_path: Path) -> Iterator[Running]:
    """Over a backend in a process of its own."""

    def in_process(usual: FakeBackend) -> ProcessBackend:
        usual.close()
        settings = {"slots": 32, "eos_period": 0, "kv_tokens": 65_536}
        return ProcessBackend("fake", settings)

    with running(World(jobs_dir=tmp_path / "jobs", wrap=in_process)) as made:
        yield made


def test_a_line_that_kills_the_tokenizer_fails_alone(
    server: Running, deaths: Deaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the night: such a line was asked for 24 hours, and every try ended the backend."""
    monkeypatch.setattr(limits, "LATER_S_MAX", 0.1)
    lines = [line(f"c{each}", prompt=DEADLY if each == 4 else "y") for each in range(40)]
    with client_of(server) as client:
        done = ended(client, submit(client, lines))
        assert done.status == "completed"
        expected = [f"c{each}" for each in range(40) if each != 4]
        assert custom_ids(results(client, done.output_file_id)) == expected
        (row,) = results(client, done.error_file_id)
    assert row["custom_id"] == "c4"
    assert row["response"]["status_code"] == 500
    assert row["response"]["body"]["error"]["code"] == "input_crashed"
    assert "may be the cause" in row["response"]["body"]["error"]["message"]
    assert deaths.count == FAILURES_MAX
    server.check_idle()


def test_a_call_that_kills_the_tokenizer_is_not_sent_again(server: Running, deaths: Deaths) -> None:
    """Guards everybody else: OpenAI's client sends a call twice more unless it is told not to."""
    base_url = f"{server.url}/v1"
    with OpenAI(base_url=base_url, api_key="none", max_retries=2, timeout=WAIT_S) as client:
        with pytest.raises(InternalServerError, match="may be the cause") as caught:
            client.completions.create(model=MODEL, prompt=DEADLY)
        assert caught.value.status_code == 500
        assert "retry-after" not in caught.value.response.headers
        assert client.completions.create(model=MODEL, prompt="y", max_tokens=4).choices
    assert deaths.count == 1
