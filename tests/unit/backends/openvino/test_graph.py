"""Tests of `jitney.backends.openvino.graph` that need no model."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("openvino"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.openvino import graph
from jitney.errors import ModelError


def test_memory_that_the_system_refuses_names_the_setting() -> None:
    """Guards a machine that gives out no memory on credit: it read "failed unexpectedly"."""
    with pytest.raises(ModelError, match=r"kv_tokens: .* 1073741824 blocks .*; lower it"):
        graph._zeros([1 << 30, 1 << 28], "u1")


def test_nothing_is_sent_when_the_library_is_loaded(tmp_path: Path) -> None:
    """Guards users: OpenVINO told its maker of every import, and forked the process for it."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        names = ("https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY")
        environ = {**os.environ, **dict.fromkeys(names, address), "HOME": str(tmp_path)}
        modules = "jitney.backends.openvino.graph, jitney.backends.openvino.convert"
        command = [sys.executable, "-c", f"import {modules}"]
        subprocess.run(command, env=environ, check=True, timeout=120)
        # Its process to send an event connects before the import returns, or leaves its folder.
        assert not list(tmp_path.iterdir())
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
