"""Draws several prompts while they are answered: panes, and a status bar below them.

Makes a drawing for rich from numbers and text, for a given width and height. Pure; any thread.
"""

from dataclasses import dataclass
from enum import StrEnum

from rich.cells import cell_len, chop_cells
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
"""From this many on, a row has two panes; below it, prompts have lines without a frame."""

BOARD_ROWS_MAX = 44
STATUS_ROWS = 4
PANE_ROWS_MIN = 3


class PaneState(StrEnum):
    """WAITING -> RUNNING -> DONE or FAILED."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


LOOKS = {
    PaneState.WAITING: ("·", "bright_black"),
    PaneState.RUNNING: ("▸", "green"),
    PaneState.DONE: ("✓", "blue"),
    PaneState.FAILED: ("✗", "red"),
}
"""The sign and the style of each state."""


@dataclass(frozen=True, slots=True)
class Pane:
    """One prompt and its answer so far."""

    title: str
    text: str
    state: PaneState
    tokens: int


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
    rows = min(height, BOARD_ROWS_MAX) - STATUS_ROWS
    if width < MIDDLE or rows < PANE_ROWS_MIN * _rows_of(len(panes), 2):
        return Group(*_tails(panes, width, rows), *_status_lines(status, width))
    in_row = 4 if width >= WIDE and len(panes) > 2 else 2
    return Group(_grid(panes, in_row, width, rows), *_status_lines(status, width))


def tail(text: str, width: int, rows: int) -> list[str]:
    """The last lines of a text, wrapped at words."""
    # Not rich's own wrapping, which takes twice the time for a long text.
    wrapper = Wrapper(width)
    wrapped = (wrapper.feed(text.strip()) + wrapper.end()).split("\n")
    # A word longer than a line is cut.
    lines = [piece for line in wrapped for piece in chop_cells(line, width) or [line]]
    return lines[-rows:] if rows > 0 else []


def ticker(text: str, width: int) -> str:
    """The end of a text on one line; it begins with a whole word."""
    line = " ".join(text.split())
    if cell_len(line) <= width:
        return line
    kept = ""
    for character in reversed(line):
        if cell_len(character + kept) > width - 2:
            break
        kept = character + kept
    return "… " + kept.partition(" ")[2] if " " in kept else kept


def _rows_of(count: int, in_row: int) -> int:
    return -(-count // in_row)


def _title(pane: Pane, width: int) -> Text:
    """Its sign and its title, on one line."""
    sign, style = LOOKS[pane.state]
    words = " ".join(pane.title.split())
    title = Text(f"{sign} {words}", style=f"bold {style}", no_wrap=True)
    title.truncate(width, overflow="ellipsis")
    return title


def _grid(panes: list[Pane], in_row: int, width: int, rows: int) -> Table:
    grid = Table.grid(expand=True)
    for _ in range(in_row):
        grid.add_column(ratio=1)
    pane_rows = rows // _rows_of(len(panes), in_row)
    pane_width = width // in_row
    drawn = [_panel(pane, pane_width, pane_rows) for pane in panes]
    for at in range(0, len(drawn), in_row):
        grid.add_row(*drawn[at : at + in_row])
    return grid


def _panel(pane: Pane, width: int, rows: int) -> Panel:
    lines = tail(pane.text, width - 4, rows - 2)
    return Panel(
        Text("\n".join(lines), style="" if pane.text else "dim", no_wrap=True),
        title=_title(pane, width - 8),
        title_align="left",
        subtitle=Text(f"{pane.tokens} {plural('token', pane.tokens)}", style="bright_black"),
        subtitle_align="right",
        border_style=LOOKS[pane.state][1],
        height=rows,
        padding=(0, 1),
    )


def _tails(panes: list[Pane], width: int, rows: int) -> list[Text]:
    """For a narrow terminal: a title and as many lines of the answer as there is room for."""
    each = max(rows // max(len(panes), 1), 1)
    lines = []
    for pane in panes:
        if each == 1:
            title = _title(pane, width // 3 + 2)
            last = ticker(pane.text, width - title.cell_len - 3)
            lines.append(Text(no_wrap=True).append_text(title).append(f": {last}"))
            continue
        lines.append(_title(pane, width - 1))
        shown = tail(pane.text, width - 3, each - 1)
        lines += [Text("  " + line, no_wrap=True) for line in shown]
        lines += [Text("")] * (each - 1 - len(shown))
    return lines


def _status_lines(status: Status, width: int) -> list[RenderableType]:
    lines = [_slots(status, width), _memory(status, width), _batch(status), _speed(status)]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
        line.no_wrap = True
    return list(lines)


def _label(word: str) -> Text:
    return Text().append(f" {word:<7}", style="bold")


def _slots(status: Status, width: int) -> Text:
    room = max(width // 3, 8)
    cells = min(status.slots_max, room)
    scale = cells / max(status.slots_max, 1)
    running, cached = status.snapshot.running_count, status.snapshot.cached_count
    idle = max(status.slots_max - running - cached, 0)
    running_cells, cached_cells = round(running * scale), round(cached * scale)
    line = _label("slots")
    line.append("■" * running_cells, style="green")
    line.append("■" * cached_cells, style="cyan")
    line.append("□" * max(cells - running_cells - cached_cells, 0), style="bright_black")
    return line.append(f"  {running} running  {cached} cached  {idle} idle")


def _memory(status: Status, width: int) -> Text:
    cells = max(min(width // 3, 32), 8)
    snapshot = status.snapshot
    share = cells / max(snapshot.kv_tokens, 1)
    # Round up: even a small part of a large memory is one cell.
    used = min(-int(-snapshot.kv_used * share // 1), cells)
    cached = min(round(snapshot.kv_cached * share), used)
    line = _label("kv")
    line.append("█" * (used - cached), style="green")
    line.append("█" * cached, style="cyan")
    line.append("░" * (cells - used), style="bright_black")
    words = f"  {snapshot.kv_used:,} of {snapshot.kv_tokens:,} tokens"
    return line.append(words)


def _batch(status: Status) -> Text:
    line = _label("batch")
    words = (
        f"{status.decode_tokens} decode + {status.prefill_tokens} prefill tokens"
        f"  ·  queue {status.snapshot.waiting_count}"
    )
    return line.append(words)


def _speed(status: Status) -> Text:
    line = _label("speed")
    line.append(f"{status.rate_now:,.0f} tokens/s", style="bold magenta")
    words = f" now  ·  {status.rate_mean:,.0f} mean  ·  {status.elapsed_s:.1f} s"
    return line.append(words)
