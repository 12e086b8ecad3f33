"""Draws several prompts while they are answered: panes, and a status bar below them.

Makes a drawing for rich from numbers and text, for a given width and height. Pure; any thread.
"""

import math
from dataclasses import dataclass
from enum import Enum

from rich.cells import chop_cells
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from jitney.cli.result_lines import plural
from jitney.cli.terminal import Wrapper
from jitney.core.snapshot import Snapshot

WIDE = 112
"""From this many columns on, a row has four panes."""

MIDDLE = 72
"""From this many on, a row has two panes; below it, each prompt has one line."""

BOARD_ROWS_MAX = 44
STATUS_ROWS = 4
PANE_ROWS_MIN = 3


class PaneState(Enum):
    """WAITING -> RUNNING -> DONE or FAILED; each with its sign and its style."""

    WAITING = ("·", "bright_black")
    RUNNING = ("▸", "green")
    DONE = ("✓", "blue")
    FAILED = ("✗", "red")


@dataclass(slots=True)
class Pane:
    """One prompt and its answer so far, or why it failed."""

    title: str
    text: str = ""
    state: PaneState = PaneState.WAITING
    tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of the engine."""

    slots_max: int
    snapshot: Snapshot
    decode_tokens: int
    prefill_tokens: int
    rate_now: float
    rate_mean: float
    elapsed_s: float


def draw(panes: list[Pane], status: Status, width: int, height: int) -> RenderableType:
    """The whole board, at most `height` rows high."""
    in_row = 4 if width >= WIDE and len(panes) > 2 else 2
    rows = min(height, BOARD_ROWS_MAX) - STATUS_ROWS
    pane_rows = rows // math.ceil(len(panes) / in_row)
    if width < MIDDLE or pane_rows < PANE_ROWS_MIN:
        return Group(*(_line(pane, width) for pane in panes), *_status_lines(status, width))
    grid = Table.grid(expand=True)
    for _ in range(in_row):
        grid.add_column(ratio=1)
    drawn = [_panel(pane, width // in_row, pane_rows) for pane in panes]
    for at in range(0, len(drawn), in_row):
        grid.add_row(*drawn[at : at + in_row])
    return Group(grid, *_status_lines(status, width))


def tail(text: str, width: int, rows: int) -> list[str]:
    """The last lines of a text, wrapped at words."""
    # Not rich's own wrapping, which takes twice the time for a long text.
    wrapper = Wrapper(width)
    wrapped = (wrapper.feed(text.strip()) + wrapper.end()).split("\n")
    # A word longer than a line is cut.
    lines = [piece for line in wrapped for piece in chop_cells(line, width) or [line]]
    return lines[-rows:] if rows > 0 else []


def _title(pane: Pane, width: int) -> Text:
    """Its sign and its title, on one line."""
    sign, style = pane.state.value
    words = " ".join(pane.title.split())
    title = Text(f"{sign} {words}", style=f"bold {style}", no_wrap=True)
    title.truncate(width, overflow="ellipsis")
    return title


def _panel(pane: Pane, width: int, rows: int) -> Panel:
    lines = tail(pane.text, width - 4, rows - 2)
    return Panel(
        Text("\n".join(lines), no_wrap=True),
        title=_title(pane, width - 8),
        title_align="left",
        subtitle=Text(f"{pane.tokens} {plural('token', pane.tokens)}", style="bright_black"),
        subtitle_align="right",
        border_style=pane.state.value[1],
        height=rows,
        padding=(0, 1),
    )


def _line(pane: Pane, width: int) -> Text:
    """For a narrow terminal: the title and the end of the answer."""
    title = _title(pane, width // 3 + 2)
    last = tail(" ".join(pane.text.split()), width - title.cell_len - 3, 1)
    return Text(no_wrap=True).append_text(title).append(f": {last[0]}")


def _status_lines(status: Status, width: int) -> list[Text]:
    snapshot = status.snapshot
    running, cached = snapshot.running_count, snapshot.cached_count
    idle = max(status.slots_max - running - cached, 0)
    slot_cells = min(status.slots_max, max(width // 3, 8))
    cells = max(min(width // 3, 32), 8)
    rows = (
        (
            "slots",
            _bar(("■", "□"), slot_cells, status.slots_max, running + cached, cached),
            f"  {running} running  {cached} cached  {idle} idle",
        ),
        (
            "kv",
            _bar(("█", "░"), cells, snapshot.kv_tokens, snapshot.kv_used, snapshot.kv_cached),
            f"  {snapshot.kv_used:,} of {snapshot.kv_tokens:,} tokens",
        ),
        (
            "batch",
            f"{status.decode_tokens} decode + {status.prefill_tokens} prefill tokens",
            f"  ·  queue {snapshot.waiting_count}",
        ),
        (
            "speed",
            Text(f"{status.rate_now:,.0f} tokens/s", style="bold magenta"),
            f" now  ·  {status.rate_mean:,.0f} mean  ·  {status.elapsed_s:.1f} s",
        ),
    )
    lines = [
        Text.assemble((f" {label:<7}", "bold"), value, words, no_wrap=True)
        for label, value, words in rows
    ]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _bar(signs: tuple[str, str], cells: int, total: int, used: int, cached: int) -> Text:
    """A bar of two signs, full and empty; a part of the used cells is cached."""
    full, empty = signs
    share = cells / max(total, 1)
    # Round up: even a small part of a large memory is one cell.
    filled = min(math.ceil(used * share), cells)
    cached_cells = min(round(cached * share), filled)
    return Text.assemble(
        (full * (filled - cached_cells), "green"),
        (full * cached_cells, "cyan"),
        (empty * (cells - filled), "bright_black"),
    )
