"""Shapes of a forward pass that round every token alike (invariant 4). Pure; called by backends.

Libraries choose kernels by the shape of a pass, and each kernel rounds in its own way. Some take
rows in groups and the rest one by one; some compute a single token in another way than a span. So a
backend that promises equal texts fills the groups, and computes no token of a prompt alone.
"""

import logging

from jitney.core.batch import Entry
from jitney.errors import ConfigError

MAY_DIFFER = "What else is in the batch can change a text here (batch_invariant)"
"""A warning, where no shape was found."""

_log = logging.getLogger("jitney")


def rows_missing(rows: int, group: int) -> int:
    """How many rows to add for a whole number of groups."""
    return -rows % group


def is_lone(entry: Entry, prompt_count: int) -> bool:
    """Whether an entry is a single token of a prompt, and not its first.

    The first token sees only itself, which gives the same result in every kernel.
    """
    return entry.length == 1 and 0 < entry.start < prompt_count


def report_none(title: str, batch_invariant: str) -> None:
    """Warn that no shape was found. Raises ConfigError where `batch_invariant` is on."""
    if batch_invariant == "auto":
        _log.warning(MAY_DIFFER)
    if batch_invariant == "on":
        raise ConfigError(
            f"batch_invariant is on, and no trial found that {title} computes this model alike in "
            "every batch on this machine; leave it out, or give off."
        )
