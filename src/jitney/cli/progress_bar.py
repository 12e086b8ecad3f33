"""The bar that long commands show on standard error. Main thread.

Tests: tests/unit/cli/test_progress_bar.py.
"""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def progress_bar(console: Console) -> Progress:
    """A bar with a count and the time that is left; it goes away at the end.

    Elsewhere than on a terminal there is none, and not the empty line of one that went away.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
