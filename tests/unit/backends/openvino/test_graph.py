"""Tests of `jitney.backends.openvino.graph` that need no model."""

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
