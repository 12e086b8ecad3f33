"""The lesson's program: its steps and percentiles are counted, so they can be asserted."""

import ast
import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import static_vs_continuous as lesson

ROOT = Path(__file__).parents[3]
LOOP_LINES_MAX = 15
PRINTED = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, lesson.Run]]:
    """Every load, every way."""
    return {
        name: {way: lesson.run(way, load, lesson.PLACES) for way in lesson.WAYS}
        for name, load in lesson.LOADS.items()
    }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One load of one request, for tests of what is around it."""
    monkeypatch.setattr(lesson, "LOADS", {"one": [lesson.Request(0, 3)]})


@pytest.mark.parametrize(
    ("way", "answered"),
    [
        ("static loop", [30, 30, 37]),
        ("continuous loop", [3, 30, 8]),
        # Its timer starts with the oldest request, so C need not wait for others at step 30.
        ("jitney, static", [30, 30, 33]),
        ("jitney, continuous", [3, 30, 8]),
    ],
)
def test_a_waits_for_b_in_a_static_batch_only(way: str, answered: list[int]) -> None:
    """Guards the course's two pictures: A (3 tokens) after 30 steps and after 3, B after 30."""
    run = lesson.run(way, lesson.DRAWN, lesson.DRAWN_PLACES)
    assert [request.answered for request in run.load] == answered
    assert [len(request.tokens) for request in run.load] == [3, 30, 3]


@pytest.mark.parametrize(
    ("load", "way", "figures"),
    [
        ("mixed lengths, one request every 10 steps", "static loop", (44, 60, 1.41)),
        ("mixed lengths, one request every 10 steps", "continuous loop", (10, 30, 1.41)),
        ("mixed lengths, one request every 10 steps", "jitney, static", (44, 54, 1.41)),
        ("equal lengths, all at once", "static loop", (180, 348, 4.0)),
        ("equal lengths, all at once", "continuous loop", (180, 348, 4.0)),
        ("mixed lengths, all at once", "static loop", (450, 870, 1.91)),
        ("mixed lengths, all at once", "continuous loop", (218, 410, 3.88)),
    ],
)
def test_the_tail_is_shorter_at_the_same_throughput(
    results: dict[str, dict[str, lesson.Run]],
    load: str,
    way: str,
    figures: tuple[int, int, float],
) -> None:
    """Guards the sentences of docs/learn.md: p50, p95 and tokens in a step, of each load."""
    run = results[load][way]
    assert (run.percentile(50), run.percentile(95), round(run.throughput, 2)) == figures


@pytest.mark.parametrize("load", lesson.LOADS)
def test_the_loop_is_what_the_scheduler_does(
    results: dict[str, dict[str, lesson.Run]], load: str
) -> None:
    """Guards the lesson against teaching another thing than what runs: step by step, equal."""
    runs = results[load]
    loop, scheduler = runs["continuous loop"], runs["jitney, continuous"]
    assert [each.answered for each in loop.load] == [each.answered for each in scheduler.load]
    assert loop.positions == scheduler.positions
    if "at once" in load:
        loop, scheduler = runs["static loop"], runs["jitney, static"]
        assert [each.answered for each in loop.load] == [each.answered for each in scheduler.load]
    assert lesson.same_tokens(runs)
    assert len({sum(run.positions) for run in runs.values()}) == 1


def test_a_prefill_computes_the_prompt_and_a_decode_one_position() -> None:
    """Guards the explanation of prefill and decode."""
    run = lesson.run("continuous loop", [lesson.Request(0, 4)], 1)
    assert run.positions == [len(run.load[0].prompt), 1, 1, 1]


@pytest.mark.parametrize("loop", [lesson.static_batch_loop, lesson.continuous_batch_loop])
def test_a_loop_is_read_at_once(loop: Callable[..., None]) -> None:
    """Guards its promise: fifteen lines below the docstring."""
    (function,) = ast.parse(inspect.getsource(loop)).body
    assert isinstance(function, ast.FunctionDef)
    last = function.body[-1].end_lineno
    assert last is not None
    assert last - function.body[1].lineno + 1 <= LOOP_LINES_MAX


def test_what_the_page_shows_is_what_it_prints(results: dict[str, dict[str, lesson.Run]]) -> None:
    """Guards docs/learn.md: its blocks of output, and the words inside the picture."""
    drawn = {way: lesson.run(way, lesson.DRAWN, lesson.DRAWN_PLACES) for way in lesson.HEADINGS}
    tables = [lesson.table(*each) for each in results.items()]
    printed = "\n".join([lesson.step_picture(drawn), *tables, ""])
    page = (ROOT / "docs" / "learn.md").read_text(encoding="utf-8")
    blocks = page.split("```text\n")[1:]
    assert len(blocks) >= 2
    for block in blocks:
        assert block.partition("```")[0] in printed
    picture = (ROOT / "docs" / "images" / "static_vs_continuous.png").read_bytes()
    text = f"{lesson.step_picture(drawn)}\n\n{tables[0]}"
    assert text.encode() in picture, "draw it again, as the page says"


@pytest.mark.usefixtures("small")
def test_a_terminal_without_such_signs_gets_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards a terminal that knows ASCII only: a picture, and no traceback."""
    file = tmp_path / "terminal"
    with file.open("w", encoding="ascii") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        lesson.main([])
    assert "P##..........................." in file.read_text(encoding="ascii")


@pytest.mark.usefixtures("small")
def test_without_matplotlib_it_says_so(capsys: PRINTED, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards whoever asks for a picture first: the lesson in the terminal, then one sentence."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match="matplotlib, which is not installed; pip install"):
        lesson.main(["--png", "never.png"])
    assert "answer after 3 steps" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_a_picture_is_written_or_there_is_a_sentence(tmp_path: Path) -> None:
    """Guards the whole way, where matplotlib is installed."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    picture = tmp_path / "steps.png"
    lesson.main(["--png", str(picture)])
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit, match=r"cannot be written to .*: No such file or directory"):
        lesson.main(["--png", str(tmp_path / "nowhere" / "steps.png")])
