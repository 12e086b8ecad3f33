"""How many rows of a pass llama.cpp computes alike: `Shape`. Light: no library is loaded.

Tests: tests/unit/backends/llamacpp/test_passes.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many rows are computed alike."""

    rows_group: int = 1
    """Rows of a pass, and those whose logits are wanted, are a multiple of this."""
    span_rows_min: int = 1
    """A piece of a prompt has at least so many rows."""
    span_rows_max: int = 512
    """And at most so many: larger ones are no faster and take more work space."""
    lone_tokens_max: int = 0
    """A longer sequence is not computed alone, without a neighbouring slot; 0 is no limit."""
    decodes_differ: bool = False
    """Whether a token of its own is rounded otherwise than one in a piece of a prompt."""
