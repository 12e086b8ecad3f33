"""Shapes of a forward pass that round every token alike (invariant 4). Pure; called by backends.

Libraries choose kernels by the shape of a pass, and each kernel rounds in its own way. Some take
rows in groups and the rest one by one; some compute a single token in another way than a span. So a
backend that promises equal texts fills the groups, and computes no token of a prompt alone.
"""

from jitney.core.batch import Entry


def rows_missing(rows: int, group: int) -> int:
    """How many rows to add for a whole number of groups."""
    return -rows % group


def is_lone(entry: Entry, prompt_count: int) -> bool:
    """Whether an entry is a single token of a prompt, and not its first.

    The first token sees only itself, which gives the same result in every kernel.
    """
    return entry.length == 1 and 0 < entry.start < prompt_count
