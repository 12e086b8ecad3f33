"""Tests of `OutputFiles`: two files that are complete or not there."""

from hashlib import sha256

from jitney.server.batches.content_files import OutputFiles
from jitney.server.batches.rows import BatchStatus, StoredBatch
from jitney.server.batches.store import BatchStore
from tests.unit.server.batches.store_for_tests import NOW, begun, ids_in, result


def expired(store: BatchStore) -> StoredBatch:
    batch = begun(store, 6)
    store.batches.settle([result(batch, 2), result(batch, 4, is_done=False), result(batch, 5)])
    store.batches.finalize(batch.serial, NOW, BatchStatus.EXPIRED)
    return store.batches.get(batch.serial)


def files_in(store: BatchStore) -> set[str]:
    return {path.name for path in (store.folder / "files").iterdir()}


def test_each_line_is_in_one_of_the_files_in_order(store: BatchStore) -> None:
    """Guards the recount: done lines in one file, all others with their reasons in the other."""
    batch = expired(store)
    before = files_in(store)
    files = OutputFiles(store.content, batch)
    files.add(store.batches.written_lines(batch.serial, 0))
    files.sync()
    # Nothing has a final name yet.
    assert all(name.endswith(".partial") for name in files_in(store) - before)
    files.name()
    output, errors = files.records(NOW)
    assert output is not None
    assert errors is not None
    assert ids_in(store.content.path_of(output.id)) == ["c2", "c5"]
    assert ids_in(store.content.path_of(errors.id)) == ["c1", "c3", "c4", "c6"]
    content = store.content.path_of(output.id).read_bytes()
    assert (output.bytes, output.sha256) == (len(content), sha256(content).hexdigest())
    assert (output.purpose, output.owner) == ("batch_output", batch.owner)
    assert files_in(store) - before == {output.id, errors.id}


def test_what_is_discarded_leaves_nothing(store: BatchStore) -> None:
    """Guards the disk when it is full: a second try begins with the room of the first."""
    batch = expired(store)
    before = files_in(store)
    for is_complete in (False, True):
        files = OutputFiles(store.content, batch)
        files.add(store.batches.written_lines(batch.serial, 0))
        if is_complete:
            files.sync()
        assert files_in(store) > before
        files.discard()
        assert files_in(store) == before


def test_a_thread_that_is_late_writes_nothing_into_what_was_discarded(store: BatchStore) -> None:
    """Guards a stop while a batch is written: no descriptor and no file stay behind."""
    batch = expired(store)
    before = files_in(store)
    files = OutputFiles(store.content, batch)
    files.discard()
    files.add(store.batches.written_lines(batch.serial, 0))
    files.sync()
    assert files_in(store) == before
