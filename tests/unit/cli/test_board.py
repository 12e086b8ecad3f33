"""Tests of `jitney.cli.board`: the board fits, and shows what it is given."""

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from jitney.cli.board import Pane, PaneState, Status, draw, tail
from tests.snapshots_for_tests import IDLE

STATUS = Status(
    slots_max=32,
    snapshot=replace(
        IDLE,
        running_count=5,
        waiting_count=3,
        cached_count=2,
        kv_tokens=16_384,
        kv_used=900,
        kv_cached=300,
    ),
    decode_tokens=5,
    prefill_tokens=24,
    rate_now=123.4,
    rate_mean=99.6,
    elapsed_s=2.5,
)


def panes(count: int) -> list[Pane]:
    text = "A bus rolls 日本 through the rain.\n\n" * 30
    return [Pane(f"prompt number {i}", text, PaneState.RUNNING, i) for i in range(count)]


def board(count: int, width: int, height: int, status: Status = STATUS) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=False)
    with console.capture() as capture:
        console.print(draw(panes(count), status, width, height))
    return capture.get().splitlines()


@pytest.mark.parametrize("size", [(200, 60), (120, 40), (112, 30), (80, 24), (72, 20), (60, 20)])
@pytest.mark.parametrize("count", [2, 5, 8])
def test_the_board_fits_its_terminal(size: tuple[int, int], count: int) -> None:
    """Guards against scrolling: a board that is too high tears at every frame."""
    width, height = size
    lines = board(count, width, height - 1)
    assert len(lines) <= height - 1
    assert max(map(cell_len, lines)) <= width
    text = "\n".join(lines)
    for number in range(count):
        assert f"number {number}" in text


def test_a_very_small_terminal_still_has_a_line_for_each() -> None:
    """Guards terminals in a corner of the screen."""
    lines = board(8, 40, 14)
    assert len(lines) <= 14
    assert sum("prompt" in line for line in lines) == 8


def test_the_status_bar_says_how_the_engine_stands() -> None:
    """Guards the numbers: each stands under its own name."""
    slots, memory, batch, speed = board(8, 120, 39)[-4:]
    assert slots.count("■") == 7
    assert slots.count("□") == 25
    assert "5 running  2 cached  25 idle" in slots
    assert "900 of 16,384 tokens" in memory
    assert "5 decode + 24 prefill tokens" in batch
    assert "queue 3" in batch
    assert "123 tokens/s now" in speed
    assert "100 mean" in speed


def test_memory_that_holds_little_is_not_drawn_as_empty() -> None:
    """Guards the bar: one token of a million is something."""
    memory = board(8, 120, 39)[-3]
    assert memory.count("█") == 2
    assert "░" in memory


def test_the_end_of_an_answer_is_shown() -> None:
    """Guards following along: the newest words are the ones to see."""
    assert tail("one two three four\n", 9, 2) == ["three", "four"]
    assert tail("x" * 25, 10, 9) == ["x" * 10, "x" * 10, "x" * 5]
    assert tail("anything", 10, 0) == []
