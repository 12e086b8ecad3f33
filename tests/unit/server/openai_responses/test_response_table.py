"""Tests of `ResponseTable`: what goes in one transaction."""

from pathlib import Path

import pytest

from jitney.server.batches.store import BatchStore
from jitney.server.openai_responses import limits
from jitney.server.openai_responses.response_object import ResponseState
from jitney.server.openai_responses.response_table import Ended, ResponseTable
from jitney.server.openai_responses.stored_rows import NewResponse, rows_of

ASKED = {"model": "fake", "previous_response_id": None}


def test_a_sweep_is_bounded_by_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards all streams: expired answers of many pieces do not keep the store for long."""
    monkeypatch.setattr(limits, "PIECE_DELTAS", 1)
    monkeypatch.setattr(limits, "SWEEP_ROWS", 5)
    store = BatchStore(tmp_path / "jobs")
    table = ResponseTable(store.database)
    for number in range(5):
        state = ResponseState(id=f"{number}", asked=ASKED, created_at=0, status="completed")
        deltas = [{"delta": {"content": "a"}}] * 2
        table.add(rows_of(NewResponse(owner="", state=state, input=[], deltas=deltas)))
    now = limits.EXPIRY_S + 1
    assert [table.sweep(now) for _ in range(4)] == [6, 6, 3, 0]
    assert store.database.value("SELECT count(*) FROM response_pieces") == 0
    store.close()


def test_a_sweep_leaves_what_has_not_ended(tmp_path: Path) -> None:
    """Guards answers under way where the clock is set at a start: one goes when it has ended."""
    store = BatchStore(tmp_path / "jobs")
    table = ResponseTable(store.database)
    for number, status in enumerate(("queued", "in_progress", "completed")):
        state = ResponseState(id=f"{number}", asked=ASKED, created_at=0, status=status)
        table.add(rows_of(NewResponse(owner="", state=state, input=[])))
    now = limits.EXPIRY_S + 1
    assert (table.sweep(now), table.sweep(now)) == (1, 0)
    assert [serial for serial, _, _ in table.unfinished(0, 9)] == [1, 2]
    table.keep([], [Ended(serial=1, status="completed", now=now)])
    assert (table.sweep(now), table.sweep(now)) == (1, 0)
    store.close()
