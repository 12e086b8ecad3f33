"""`PrefixPlace`: where prefixes are stored, as it is sent to the backend's process.

Tests: tests/conformance/test_prefixes.py.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixPlace:
    """Which folder, how many bytes of it, and digests of the model and of how it is computed."""

    folder: str
    limit: int
    model: str
    shape: str
