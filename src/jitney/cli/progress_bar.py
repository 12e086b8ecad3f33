"""The bar that long commands show on standard error. Main thread.

Tests: tests/unit/cli/test_progress_bar.py.
"""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)


def progress_bar(console: Console, *figures: ProgressColumn) -> Progress:
    """A bar that goes away at the end, with these figures, or a count and the time that is left.

    Elsewhere than on a terminal there is none, and not the empty line of one that went away.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *(figures or (MofNCompleteColumn(), TimeRemainingColumn())),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
