"""Prefixes on disk: what is found again, what is a miss, and what stays within the budget."""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jitney.backends.shared.prefix_files import (
    CHUNK_TOKENS,
    LIST_S_MIN,
    PAUSE_S,
    FoundPrefix,
    PrefixFiles,
    PrefixOrigin,
)
from jitney.backends.shared.prefix_folder import ENDING, LOCK, PARTIAL, PrefixFolder
from jitney.backends.shared.prefix_record import (
    DIGEST_BYTES,
    HEAD_BYTES_MAX,
    MAGIC,
    Piece,
    decoded,
    encoded,
    head_of,
)
from jitney.core.backend import Fetch
from jitney.errors import ConfigError

ORIGIN = PrefixOrigin("a model", "a shape")
TOKENS = tuple(range(5 * CHUNK_TOKENS + 7))
MEMORY = (b"keys and " * 100, memoryview(b"values" * 100))
WHOLE = b"".join(MEMORY)
LIMIT = 2**20


class SetClock:
    """Time that a test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def files_in(folder: Path, origin: PrefixOrigin = ORIGIN, limit: int = LIMIT) -> PrefixFiles:
    """What a process that starts now knows of the folder. It writes at once."""
    return PrefixFiles(PrefixFolder(folder), origin, limit, begin=lambda write: write())


def ask(
    tokens: tuple[int, ...] = TOKENS, scope: str = "a scope", *, least: int = CHUNK_TOKENS
) -> Fetch:
    return Fetch(ticket=1, scope=scope, tokens=tokens, least=least, held_max=10_000)


def length_of(found: FoundPrefix | None) -> int:
    return 0 if found is None else found.length


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one stored prefix."""
    files_in(tmp_path).put("a scope", TOKENS, len(TOKENS), MEMORY)
    return tmp_path


def stored(folder: Path) -> Path:
    """The file of the one stored prefix."""
    (path,) = folder.glob(f"*{ENDING}")
    return path


def test_what_was_stored_is_found_by_another_process(folder: Path) -> None:
    """Guards the point of it: a start finds what an earlier process left."""
    found = files_in(folder).find(ask())
    assert found is not None
    assert bytes(found.record.memory) == WHOLE
    assert found.record.tokens == TOKENS
    assert found.length == 5 * CHUNK_TOKENS


@pytest.mark.parametrize("shared", [4 * CHUNK_TOKENS, 3 * CHUNK_TOKENS + 5, CHUNK_TOKENS])
def test_a_part_that_is_equal_is_found(folder: Path, shared: int) -> None:
    """Guards system prompts: two texts share their beginning, not their end."""
    other = (*TOKENS[:shared], *range(9000, 9000 + 300))
    found = files_in(folder).find(ask(other, least=2 * CHUNK_TOKENS))
    whole = shared // CHUNK_TOKENS * CHUNK_TOKENS
    assert length_of(found) == (whole if whole >= 2 * CHUNK_TOKENS else 0)


def test_a_little_of_a_large_file_is_not_worth_reading(folder: Path) -> None:
    """Guards against a read that takes longer than the tokens would."""
    other = (*TOKENS[:CHUNK_TOKENS], *range(9000, 9000 + 300))
    assert files_in(folder).find(ask(other)) is None


def test_more_than_fits_is_a_miss(folder: Path) -> None:
    """Guards memory: a file of a server with longer sequences cannot be restored."""
    assert files_in(folder).find(replace(ask(), held_max=len(TOKENS) - 1)) is None


def test_what_others_may_not_use_is_not_indexed(tmp_path: Path) -> None:
    """Guards equal texts where tokens of an answer are computed in another way."""
    files = files_in(tmp_path)
    files.put("a scope", TOKENS, 2 * CHUNK_TOKENS, MEMORY)
    assert length_of(files.find(ask())) == 2 * CHUNK_TOKENS
    assert length_of(files_in(tmp_path).find(ask())) == 2 * CHUNK_TOKENS


@pytest.mark.parametrize("scope", ["", "another scope", "a scop"])
def test_another_scope_never_hits(folder: Path, scope: str) -> None:
    """Guards a key's prompts against the caller who guesses them."""
    assert files_in(folder).find(ask(scope=scope)) is None


@pytest.mark.parametrize(
    "origin", [replace(ORIGIN, model="another"), replace(ORIGIN, shape="another")]
)
def test_another_model_or_shape_is_a_miss(folder: Path, origin: PrefixOrigin) -> None:
    """Guards texts: the numbers of another model or machine are not ours."""
    files = files_in(folder, origin)
    assert files.find(ask()) is None
    assert files.wants("a scope", TOKENS)


def _cut(count: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:count]


def _flip(at: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def _flip_in(part: str) -> Callable[[bytes], bytes]:
    def damage(content: bytes) -> bytes:
        found = head_of(content)
        assert found is not None
        tokens = found[1]
        memory = tokens + 4 * len(TOKENS)
        return _flip({"tokens": tokens + 9, "memory": memory + 16}[part])(content)

    return damage


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "cut in the magic": _cut(5),
    "cut in the head": _cut(len(MAGIC) + 20),
    "cut in the tokens": _cut(HEAD_BYTES_MAX),
    "cut in the memory": lambda content: content[: -DIGEST_BYTES - 100],
    "cut in the digest": lambda content: content[:-1],
    "longer": lambda content: content + b"x",
    "magic": _flip(0),
    "length of the head": _flip(len(MAGIC)),
    "huge head": lambda content: content[: len(MAGIC)] + b"\xff" * 4 + content[18:],
    "head": _flip(len(MAGIC) + 12),
    "version": lambda content: content.replace(b"version\x01", b"version\x02"),
    "tokens": _flip_in("tokens"),
    "memory": _flip_in("memory"),
    "digest": _flip(-1 % DIGEST_BYTES - DIGEST_BYTES),
    "of zeros": lambda content: bytes(len(content)),
}


@pytest.mark.parametrize("is_known", [False, True], ids=["before the start", "after it"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_a_miss(
    folder: Path, damage: Callable[[bytes], bytes], is_known: bool
) -> None:
    """Guards the library: it believes any number in a memory, and ended the process for some."""
    files, path = files_in(folder), stored(folder)
    content = path.read_bytes()
    assert damage(content) != content
    path.write_bytes(damage(content))
    files = files if is_known else files_in(folder)
    assert files.find(ask()) is None
    # It is written anew, in its place.
    assert files.wants("a scope", TOKENS)
    files.put("a scope", TOKENS, len(TOKENS), MEMORY)
    assert files.find(ask()) is not None


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"scope": "another"}, {"model": "another"}, {"shape": "another"}],
    ids=lambda change: next(iter(change)),
)
@pytest.mark.parametrize("is_known", [False, True], ids=["before the start", "after it"])
def test_a_whole_file_of_something_else_is_a_miss(
    folder: Path, change: dict[str, Any], is_known: bool
) -> None:
    """Guards against a file that is right, and not what its name says."""
    files, path = files_in(folder), stored(folder)
    record = decoded(path.read_bytes())
    assert record is not None
    head = msgspec.structs.replace(record.head, **change)
    path.write_bytes(b"".join(encoded(head, record.tokens, [record.memory])))
    assert (files if is_known else files_in(folder)).find(ask()) is None


def _as_link(path: Path) -> None:
    other = path.with_name("other")
    path.replace(other)
    path.symlink_to(other)


def _as_second_name(path: Path) -> None:
    path.with_name("second").hardlink_to(path)


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("is_known", [False, True], ids=["before the start", "after it"])
@pytest.mark.parametrize(
    "change",
    [_as_link, _as_second_name, _as_folder, _as_pipe, Path.unlink],
    ids=lambda f: f.__name__,
)
def test_what_is_no_file_of_ours_is_a_miss(
    folder: Path, change: Callable[[Path], None], is_known: bool
) -> None:
    """Guards against what somebody else has laid there, and against a read that never ends."""
    files = files_in(folder)
    change(stored(folder))
    assert (files if is_known else files_in(folder)).find(ask()) is None


def test_a_file_of_another_user_is_a_miss(folder: Path) -> None:
    """Guards against a memory that somebody else wrote."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(stored(folder), 12345, 12345)
    assert files_in(folder).find(ask()) is None


def test_files_are_for_their_user_only(folder: Path) -> None:
    """Guards prompts, which are private."""
    assert folder.stat().st_mode & 0o777 == 0o700
    assert stored(folder).stat().st_mode & 0o777 == 0o600
    assert b"a scope" not in stored(folder).name.encode()


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    """Guards the budget, and what is used against what is not."""
    one = files_in(tmp_path)
    one.put("a scope", TOKENS, len(TOKENS), MEMORY)
    size = stored(tmp_path).stat().st_size
    files = files_in(tmp_path, limit=2 * size + HEAD_BYTES_MAX)
    others = [tuple(range(start, start + len(TOKENS))) for start in (10_000, 20_000)]
    files.put("a scope", others[0], len(TOKENS), MEMORY)
    for at, path in enumerate(sorted(tmp_path.glob(f"*{ENDING}"), key=lambda p: p.stat().st_mtime)):
        os.utime(path, (at, at))
    assert files.find(ask()) is not None  # the older one, but it is used now
    files.put("a scope", others[1], len(TOKENS), MEMORY)
    assert [length_of(files.find(ask(each))) > 0 for each in (TOKENS, *others)] == [
        True,
        False,
        True,
    ]
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 2 * size + HEAD_BYTES_MAX


def test_what_is_larger_than_the_budget_evicts_nobody(folder: Path) -> None:
    """Guards against a folder that is emptied in vain."""
    size = stored(folder).stat().st_size
    files = files_in(folder, limit=size)
    files.put("a scope", TOKENS[::-1], len(TOKENS), [bytes(2 * size)])
    assert files.find(ask()) is not None


def test_the_same_is_not_stored_twice(folder: Path) -> None:
    """Guards against a stall of everybody for what is there."""
    files = files_in(folder)
    assert not files.wants("a scope", TOKENS)
    assert not files.wants("a scope", TOKENS[: 2 * CHUNK_TOKENS])
    assert files.wants("another scope", TOKENS)
    assert not files.wants("another scope", TOKENS[: CHUNK_TOKENS - 1])


def test_one_is_written_at_a_time(tmp_path: Path) -> None:
    """Guards memory: what waits to be written is a copy of a slot."""
    begun: list[Callable[[], None]] = []
    files = PrefixFiles(PrefixFolder(tmp_path), ORIGIN, LIMIT, begin=begun.append)
    files.put("a scope", TOKENS, len(TOKENS), MEMORY)
    assert not files.wants("a scope", TOKENS[::-1])
    assert files.find(ask()) is None
    begun[0]()
    assert files.find(ask()) is not None
    assert files.wants("a scope", TOKENS[::-1])


def test_what_another_process_stores_is_found(tmp_path: Path) -> None:
    """Guards replicas on one disk, and bounds how often they look."""
    clock = SetClock()
    files = PrefixFiles(PrefixFolder(tmp_path), ORIGIN, LIMIT, clock=clock)
    files_in(tmp_path).put("a scope", TOKENS, len(TOKENS), MEMORY)
    assert files.find(ask()) is None
    clock.at = LIST_S_MIN
    assert files.find(ask()) is not None
    stored(tmp_path).unlink()
    clock.at = 2 * LIST_S_MIN
    assert files.find(ask()) is None
    assert files.wants("a scope", TOKENS)


class FullFolder(PrefixFolder):
    """A folder on a disk that is full after a first piece."""

    def write(self, name: str, pieces: Iterable[Piece]) -> None:
        def first_only() -> Iterable[Piece]:
            yield next(iter(pieces))
            raise OSError(errno.ENOSPC, "No space left on device")

        super().write(name, first_only())


def test_a_full_disk_stops_writing_for_a_while(tmp_path: Path) -> None:
    """Guards against a disk that is tried with every prompt, and against half a file."""
    clock = SetClock()
    files = PrefixFiles(
        FullFolder(tmp_path), ORIGIN, LIMIT, begin=lambda write: write(), clock=clock
    )
    assert files.wants("a scope", TOKENS)
    files.put("a scope", TOKENS, len(TOKENS), MEMORY)
    assert not files.wants("a scope", TOKENS)
    assert [each.name for each in tmp_path.iterdir()] == [LOCK]
    clock.at = PAUSE_S
    assert files.wants("a scope", TOKENS)


def test_half_a_file_of_a_process_that_ended_goes(tmp_path: Path) -> None:
    """Guards the disk: a process may be killed while it writes."""
    left = tmp_path / ("0" * 32 + ENDING + PARTIAL)
    left.write_bytes(b"half")
    mine = tmp_path / "notes.txt"
    mine.write_text("not ours")
    files_in(tmp_path)
    assert not left.exists()
    assert mine.exists()


def test_nobody_writes_beside_another(folder: Path) -> None:
    """Guards the budget: two that make room at once would count the same files."""
    files, shelf = files_in(folder), PrefixFolder(folder)
    with shelf.locked() as is_held:
        assert is_held
        files.put("a scope", TOKENS[::-1], len(TOKENS), MEMORY)
    assert files.find(ask(TOKENS[::-1])) is None


def test_a_file_in_its_place_is_said(tmp_path: Path) -> None:
    """Guards the start: a wrong path is an error, and not a cache that never hits."""
    path = tmp_path / "file"
    path.write_text("here")
    for each in (path, path / "below"):
        with pytest.raises(ConfigError, match=r"prefix_cache_dir.*a file is in its place"):
            PrefixFolder(each)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """The same, for a folder without the right to write."""
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match=r"prefix_cache_dir.*cannot be used"):
        PrefixFolder(tmp_path)
