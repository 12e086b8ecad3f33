"""Tests of reading and checking inputs line by line."""

import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jitney.server.batches import limits
from jitney.server.batches.lines import CheckedPart, LineCheck, read_lines_of
from tests.unit.server.batches.store_for_tests import input_of

LONGEST = 50


@given(content=st.binary(max_size=300) | st.text("ab\n\r", max_size=300).map(str.encode))
def test_every_byte_is_on_one_line(content: bytes) -> None:
    """Guards positions: lines follow each other without a gap, and only long ones are skipped."""
    file: Any = io.BufferedReader(io.BytesIO(content))  # Any: as good as that of a real file
    lines = list(read_lines_of(file, 0, LONGEST))
    start = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    for line in lines:
        assert line.start == start
        start += line.length
        part = content[line.start : start]
        if line.count > 1:
            # Blank lines that follow one another.
            assert line.is_blank
            assert not part.strip()
            assert part.count(b"\n") == line.count
            continue
        assert line.content in (None, part)
        assert (line.content is None) == (
            line.length > LONGEST
            and part[:LONGEST].find(b"\n") < 0
            and not (line.length == LONGEST + 1 and part.endswith(b"\n"))
        )
        assert b"\n" not in part[:-1]
    assert start in (len(content), 3)
    assert start == len(content) or not content[3:]


def written(path: Path, *names: str) -> Path:
    path.write_bytes(input_of(*names))
    return path


def checked_parts(path: Path) -> Iterator[CheckedPart]:
    """One part after another, each from where the last one ended."""
    check = LineCheck(None, 1000, 1000, lambda name: name == "taken")
    read_bytes = read_lines = 0
    is_last = False
    while not is_last:
        with path.open("rb") as file:
            part = check.check_part(file, read_bytes, read_lines)
        read_bytes, read_lines, is_last = part.read_bytes, part.read_lines, part.is_last
        yield part


def test_a_long_input_is_checked_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards the store's thread: each part is short, and together they are the whole."""
    monkeypatch.setattr(limits, "CHECK_LINES", 4)
    path = written(tmp_path / "in", *(f"c{number}" for number in range(10)))
    parts = list(checked_parts(path))
    assert [len(part.lines) for part in parts] == [4, 4, 2]
    assert parts[-1].read_bytes == path.stat().st_size
    lines, content = [line for part in parts for line in part.lines], path.read_bytes()
    assert [line.number for line in lines] == list(range(1, 11))
    for line in lines:
        text = content[line.start : line.start + line.length]
        assert json.loads(text)["custom_id"] == line.custom_id


def test_an_id_is_taken_once(tmp_path: Path) -> None:
    """Guards matching by id: the first line has it, within a part and across parts."""
    part = next(checked_parts(written(tmp_path / "in", "a", "a", "taken", "b")))
    assert [line.reply is None for line in part.lines] == [True, False, False, True]
    assert [line.custom_id for line in part.lines] == ["a", "a", "taken", "b"]


def test_a_line_that_is_too_long_is_not_held(tmp_path: Path) -> None:
    """Guards memory: the next line is found behind it."""
    path = tmp_path / "in"
    path.write_bytes(b"x" * 3_000_000 + b"\n")
    with path.open("ab") as file:
        file.write(written(tmp_path / "more", "after").read_bytes())
    long, good = next(checked_parts(path)).lines
    assert long.reply is not None
    assert b"3000001 bytes" in long.reply
    assert (good.number, good.custom_id, good.reply) == (2, "after", None)


def test_the_id_of_a_refused_line_is_taken_too(tmp_path: Path) -> None:
    """Guards matching by id: a rule that depends on how far apart two lines are is none."""
    path = tmp_path / "in"
    path.write_bytes(b'{"custom_id": "x", "method": "GET"}\n')
    with path.open("ab") as file:
        file.write(written(tmp_path / "more", "x", "y").read_bytes())
    assert [line.reply is None for line in next(checked_parts(path)).lines] == [False, False, True]


def test_blank_lines_are_skipped_in_large_steps(tmp_path: Path) -> None:
    """Guards a core against a file of newlines: a part is as many bytes, or as many requests, as
    are checked in one go, and blank lines are not read one by one."""
    path = tmp_path / "in"
    path.write_bytes(b"\n" * (3 * limits.CHECK_BYTES) + b" \r\n" * 1000)
    with path.open("ab") as file:
        file.write(written(tmp_path / "more", "last").read_bytes())
    parts = list(checked_parts(path))
    assert len(parts) <= 4
    steps = 0
    for begin in (0, *(part.read_bytes for part in parts[:-1])):
        with path.open("rb") as file:
            steps += sum(1 for _ in itertools.islice(read_lines_of(file, begin, 1000), 4000))
    assert steps < 8000
    assert [line.number for line in parts[-1].lines] == [3 * limits.CHECK_BYTES + 1001]
