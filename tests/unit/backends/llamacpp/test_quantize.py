"""Conversion to Q8_0: the result is a model that answers like its source."""

from pathlib import Path

import pytest

from tests.backends_for_tests import skip_reason

if reason := skip_reason("llamacpp"):
    pytest.skip(reason, allow_module_level=True)

from jitney.backends.llamacpp.bindings import quantize
from jitney.backends.trials.trial import payload_of
from jitney.backends.trials.trial_child import find
from jitney.errors import ModelError
from jitney.models.gguf import read_header
from tests.models_for_tests import write_tiny_gguf

MOSTLY_Q8_0 = 7


def test_result_is_smaller_and_runs(tmp_path: Path) -> None:
    """A file that only claims to be Q8_0 would be slow or would not load."""
    source, target = tmp_path / "tiny.gguf", tmp_path / "tiny.Q8_0.gguf"
    write_tiny_gguf(source)
    quantize(source, target, threads=0)
    header = read_header(target)
    assert header.metadata["general.file_type"] == MOSTLY_Q8_0
    assert header.parameter_count == read_header(source).parameter_count
    assert header.file_bytes < source.stat().st_size // 2
    values = {"model": str(target), "threads": 2, "max_num_batched_tokens": 64}
    assert find(payload_of("llamacpp", values))["tokens_per_s"] == 0.0


def test_a_bad_source_is_a_sentence(tmp_path: Path) -> None:
    """The library's reason is in it, and nothing is printed."""
    source = tmp_path / "bad.gguf"
    source.write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(ModelError, match="could not be converted"):
        quantize(source, tmp_path / "out.gguf", threads=0)
