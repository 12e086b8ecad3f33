"""A server with prefixes on disk: killed and started again it is warm, and says the same.

The model is the first layers of the embedded one. No time is measured: how many tokens of the
prompt were found says that they were not computed.
"""

import signal
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.shared.prefix_folder import ENDING
from jitney.config import Settings
from jitney.loading import ready_model
from tests.backends_for_tests import needs
from tests.e2e.server.harness import wait_until
from tests.e2e.server.processes import ServedProcess, served
from tests.families_for_tests import beginning

LAYERS = 3
PROMPT = [(index * 37 + index * index * 5) % 900 + 100 for index in range(1300)]
FOUND_MIN = 1024
KEYS = """
keys:
  - {name: one, key: first-key}
  - {name: two, key: second-key}
"""


@pytest.fixture(scope="module")
def model() -> Path:
    return beginning(ready_model(Settings(backend="llamacpp")), LAYERS)


def asked(server: ServedProcess, prompt: list[int] = PROMPT, **more: Any) -> tuple[str, int]:
    """The text, and how many tokens of the prompt were not computed."""
    key = more.pop("key", "first-key")
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    reply = server.client.post(
        "/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"}
    )
    assert reply.status_code == 200, reply.text
    found = reply.json()
    details = found["usage"]["prompt_tokens_details"] or {}
    return found["choices"][0]["text"], details.get("cached_tokens", 0)


@pytest.mark.parametrize("backend", ["llamacpp", "openvino"])
def test_a_killed_server_starts_warm(backend: str, model: Path, tmp_path: Path) -> None:
    """Guards the point of it: after `kill -9` a long prompt is read, with the same text; and a
    second key finds nothing of the first one's."""
    needs(backend)
    keys, folder = tmp_path / "keys.yaml", tmp_path / "prefixes"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    flags = (
        *("--backend", backend, "--model", str(model), "--max-model-len", "2048"),
        *("--max-num-seqs", "2", "--threads", "1", "--cache-dir", str(model.parent)),
        *("--api-key-file", str(keys), "--prefix-cache-dir", str(folder)),
    )
    with served(tmp_path, *flags) as server:
        text, found = asked(server)
        assert found == 0
        wait_until(lambda: len(list(folder.glob(f"*{ENDING}"))) == 1, "nothing was stored")
        asked(server, PROMPT[::-1], cache_prompt=False)
        server.popen.send_signal(signal.SIGKILL)
        server.popen.wait()
    assert len(list(folder.glob(f"*{ENDING}"))) == 1
    with served(tmp_path, *flags) as server:
        assert asked(server, key="second-key")[1] == 0
        again, found = asked(server)
        assert again == text
        assert FOUND_MIN < found < len(PROMPT)
        stats = server.client.get("/stats", headers={"Authorization": "Bearer first-key"}).json()
        assert stats["counters"]["fetched_tokens"] == found
        # Its end is another one.
        assert asked(server, [*PROMPT[:1200], *PROMPT[:80]])[1] >= FOUND_MIN
