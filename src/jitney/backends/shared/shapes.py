"""Shapes of a forward pass that round every token alike (invariant 4). Pure; called by backends.

Native kernels are chosen by the shape of a pass, and each rounds in its own way: some take rows in
groups and the rest one by one, some compute a single token otherwise than a span. So a backend
that promises equal texts fills the groups, and computes no token of a prompt by itself.
"""

from jitney.core.batch import Entry


def rows_missing(rows: int, group: int) -> int:
    """Rows to be added so that all of them stand in whole groups."""
    return -rows % group


def is_lone(entry: Entry, prompt_count: int) -> bool:
    """Whether an entry is a single token of a prompt, and not its first.

    The first token looks at itself alone, which comes out the same in every kernel.
    """
    return entry.length == 1 and 0 < entry.start < prompt_count
