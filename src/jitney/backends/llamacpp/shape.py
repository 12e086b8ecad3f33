"""`Shape`: how many rows a pass must have. This module does not load the library.

Tests: tests/unit/backends/llamacpp/test_passes.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The rows of a pass. In some shapes llama.cpp computes all tokens alike."""

    rows_group: int = 1
    """The number of rows of a pass is a multiple of this. So is the number of wanted rows."""
    span_rows_min: int = 1
    """A piece of a prompt has at least this many rows."""
    span_rows_max: int = 512
    """A piece has at most this many rows: larger ones are no faster and need more work space."""
    lone_tokens_max: int = 0
    """A longer sequence is only computed together with a neighbouring slot; 0 means no limit."""
    decodes_differ: bool = False
    """Whether a single token is rounded in another way than one in a piece of a prompt."""
