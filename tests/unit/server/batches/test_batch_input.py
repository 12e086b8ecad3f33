"""Tests of `HeldInput`: an input that is touched or edited while it is read."""

from pathlib import Path

import pytest

from jitney.server.batches.batch_input import HeldInput, InputChanged


def test_a_new_date_is_no_edit_and_an_edit_is_found(tmp_path: Path) -> None:
    """Guards answers against lines that moved, whatever the size and the date say."""
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"first\n")
    held = HeldInput(path)
    path.touch()
    held.check()
    with path.open("r+b") as file:
        file.write(b"other")
    with pytest.raises(InputChanged):
        held.check_content()
    # Its date may be the same to a millisecond; its end is compared in any case.
    path.touch()
    with pytest.raises(InputChanged):
        held.check()
    with path.open("r+b") as file:
        file.write(b"first")
    held.check()
    held.close()
