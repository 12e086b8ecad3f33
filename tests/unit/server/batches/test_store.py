"""Tests of `batches.store` and its tables: owners, moves between states, counts, results."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from jitney.server.batches import limits
from jitney.server.batches.rows import BatchStatus, StoredBatch, StoredLine
from jitney.server.batches.store import BatchStore
from jitney.server.error_object import Refusal
from tests.unit.server.batches.store_for_tests import (
    NOW,
    add_file,
    begun,
    end,
    ids_in,
    new_batch,
    result,
)


@contextmanager
def refused(status: int, code: str) -> Iterator[None]:
    """Within this context the store refuses something."""
    with pytest.raises(Refusal) as caught:
        yield
    assert (caught.value.status, caught.value.code) == (status, code)


def test_a_line_has_one_result(store: BatchStore) -> None:
    """Guards exactly once: a second result of a line is left out, and counted nowhere."""
    batch = begun(store, 3)
    assert len(store.batches.settle([result(batch, 1), result(batch, 1, is_done=False)])) == 1
    assert len(store.batches.settle([result(batch, 1), result(batch, 2, is_done=False)])) == 1
    now = store.batches.get(batch.serial)
    assert (now.total, now.completed, now.failed) == (3, 1, 1)
    assert (now.prompt_tokens, now.cached_tokens, now.completion_tokens) == (6, 2, 4)
    assert [line.number for line in store.batches.pending_lines(batch.serial, 0, 10)] == [3]
    written = store.batches.written_lines(batch.serial, 0)
    assert [line.is_done for line in written] == [True, False, False]


@pytest.mark.parametrize("how", ["cancel", "finalize"])
def test_a_batch_that_ends_takes_no_more_results(store: BatchStore, how: str) -> None:
    """Guards the output: what it is written from does not change meanwhile."""
    batch = begun(store, 3)
    store.batches.settle([result(batch, 2)])
    if how == "cancel":
        assert store.batches.cancel("", batch.id, NOW) is not None
    else:
        assert store.batches.finalize(batch.serial, NOW, BatchStatus.EXPIRED)
    assert store.batches.settle([result(batch, 1)]) == []
    done = end(store, store.batches.get(batch.serial))
    assert (done.completed, done.failed, done.total) == (1, 2, 3)
    assert done.output_file_id is not None
    assert done.error_file_id is not None
    assert ids_in(store.content.path_of(done.output_file_id)) == ["c2"]
    assert ids_in(store.content.path_of(done.error_file_id)) == ["c1", "c3"]


def test_moves_start_from_their_states_only(store: BatchStore) -> None:
    """Guards ends that cross: whichever comes first holds."""
    batch = begun(store, 1)
    assert not store.batches.begin(batch.serial, NOW)
    assert not store.batches.fail(batch.serial, NOW, "x", "why")
    assert store.batches.finalize(batch.serial, NOW, BatchStatus.EXPIRED)
    assert not store.batches.finalize(batch.serial, NOW, BatchStatus.COMPLETED)
    cancelled = store.batches.cancel("", batch.id, NOW)
    assert cancelled is not None
    assert not cancelled[1]
    done = end(store, store.batches.get(batch.serial))
    assert done.status is BatchStatus.EXPIRED
    assert not store.batches.end(done, NOW, None, None)


def test_an_idempotency_key_is_of_its_owner_and_its_content(store: BatchStore) -> None:
    """Guards repeats: the same content is one batch, other content an error, others' keys apart."""
    first, again, other = (add_file(store, each) for each in (b"a", b"a", b"b"))
    made = store.batches.create(new_batch(first, idempotency_key="k"))
    assert store.batches.create(new_batch(again, idempotency_key="k")).id == made.id
    with refused(400, "idempotency_key_reused"):
        store.batches.create(new_batch(other, idempotency_key="k"))
    with refused(400, "idempotency_key_reused"):
        store.batches.create(new_batch(first, idempotency_key="k", metadata={"a": "b"}))
    strange = add_file(store, b"a", "somebody")
    assert store.batches.create(new_batch(strange, idempotency_key="k")).id != made.id
    assert store.batches.create(new_batch(first)).id != store.batches.create(new_batch(first)).id
    with refused(404, "file_not_found"):
        store.batches.create(new_batch(first, owner="somebody"))


def test_a_repeat_finds_its_batch_when_the_input_is_deleted(store: BatchStore) -> None:
    """Guards a caller who tidies up and then sends again: it is still one batch."""
    file, other = add_file(store, b"a"), add_file(store, b"a")
    made = store.batches.create(new_batch(file, idempotency_key="k"))
    store.batches.fail(made.serial, NOW, "x", "why")
    for each in (file, other):
        assert store.remove_file("", each.id) is not None
    assert store.batches.create(new_batch(file, idempotency_key="k")).id == made.id
    with refused(400, "idempotency_key_reused"):
        store.batches.create(new_batch(file, idempotency_key="k", metadata={"a": "b"}))
    # Nobody knows any more what this one was.
    with refused(404, "file_not_found"):
        store.batches.create(new_batch(other, idempotency_key="k"))


def test_live_batches_are_bounded_and_old_ones_forgotten(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the disk: a key has so many live batches, and so many that it can look back at."""
    monkeypatch.setattr(limits, "BATCHES_LIVE_MAX", 3)
    monkeypatch.setattr(limits, "BATCHES_KEPT_MAX", 5)
    file, other = add_file(store, b"a"), add_file(store, b"a", "other")
    for _ in range(4):
        made = [store.batches.create(new_batch(file)) for _ in range(3)]
        with refused(429, "too_many_batches"):
            store.batches.create(new_batch(file))
        store.batches.fail(store.batches.create(new_batch(other)).serial, NOW, "x", "why")
        for batch in made:
            store.batches.fail(batch.serial, NOW, "x", "why")
        while any(not _is_swept(store, batch) for batch in made):
            store.batches.sweep()
    kept = store.batches.listed("", None, 100)
    assert kept is not None
    assert len(kept) == 5


def _is_swept(store: BatchStore, batch: StoredBatch) -> bool:
    row = store.database.row("SELECT is_swept FROM batches WHERE serial = ?", batch.serial)
    return row is None or bool(row[0])


def test_lines_of_ended_batches_are_removed_and_others_stay(
    store: BatchStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the disk: results stay in their files, and not twice."""
    monkeypatch.setattr(limits, "SWEEP_LINES", 4)
    ended, live = begun(store, 10), begun(store, 3)
    store.batches.cancel("", ended.id, NOW)
    end(store, store.batches.get(ended.serial))
    assert [store.batches.sweep() for _ in range(4)] == [4, 4, 2, 0]
    assert store.batches.written_lines(ended.serial, 0) == []
    assert len(store.batches.pending_lines(live.serial, 0, 10)) == 3


def test_a_part_of_an_input_is_noted_once(store: BatchStore) -> None:
    """Guards a check that was repeated: the position in the input and its lines move together."""
    batch = store.batches.create(new_batch(add_file(store, b"x")))
    lines = [StoredLine(number=1, start=0, length=1, custom_id="a")]
    store.batches.add_lines(batch, lines, 10, 1)
    store.batches.add_lines(batch, lines, 10, 1)
    now = store.batches.get(batch.serial)
    assert (now.read_bytes, now.read_lines, now.total) == (10, 1, 1)


def test_another_owner_removes_nothing_of_a_file(store: BatchStore) -> None:
    """Guards content that has not got its final name yet: who may not delete it does not."""
    file = add_file(store, b"mine", "me")
    store.content.path_of(file.id).rename(store.content.partial_of(file.id))
    assert store.remove_file("somebody", file.id) is None
    with store.content.open_content(file.id) as content:
        assert content.read() == b"mine"
    assert store.remove_file("me", file.id) == file
    assert not store.content.partial_of(file.id).exists()
