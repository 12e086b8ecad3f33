"""Prefixes on disk: which are there, the longest for some tokens, and which one has to go.

A file holds what one slot held. Its tokens are indexed in chunks: the key of a chunk depends on the
model, on how it is computed, on the scope and on all tokens up to the chunk's end. So nothing of
another model, machine or scope is found, and before a memory is given out, its tokens are compared.
Whatever is damaged, gone or foreign is a miss, and never an error. Other processes may use the same
folder. `find` runs on the thread that fetches, `wants` and `put` on the one that runs batches, and
a thread of its own writes, one file at a time: what comes meanwhile is not stored.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from time import perf_counter
from typing import Protocol

from jitney.backends.shared.prefix_folder import ENDING, FileStat
from jitney.backends.shared.prefix_record import (
    DIGEST_BYTES,
    START_BYTES,
    VERSION,
    Piece,
    PrefixHead,
    PrefixRecord,
    decoded,
    encoded,
    head_of,
    token_bytes,
    tokens_of,
)
from jitney.core.backend import Fetch

CHUNK_TOKENS = 128
"""A prefix is of use up to a multiple of this. Its last few tokens are computed again."""

PART_MIN = 4
"""A file is read only if at least one in so many of its tokens is of use."""

FILES_MAX = 4096
TRIES_MAX = 4
LIST_S_MIN = 2.0
"""How often a miss may look for files of other processes."""

PAUSE_S = 60.0
"""After a failure to write, as on a full disk, nothing is stored for so long."""

_log = logging.getLogger("jitney")


class Shelf(Protocol):
    """Where files are. Raises OSError."""

    def listed(self) -> dict[str, FileStat]:
        """The files that are there, by name."""

    def read(self, name: str, bytes_max: int | None = None) -> Piece:
        """A file, or its first bytes."""

    def write(self, name: str, pieces: Iterable[Piece]) -> None:
        """Make a whole file."""

    def use(self, name: str) -> None:
        """Somebody used it now."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def locked(self) -> AbstractContextManager[bool]:
        """Hold the right to write, if nobody else does."""


@dataclass(frozen=True, slots=True)
class PrefixOrigin:
    """Digests of the model, and of how and on what it is computed: what makes memory equal."""

    model: str
    shape: str


@dataclass(frozen=True, slots=True)
class FoundPrefix:
    """A record of which the first `length` tokens are wanted."""

    record: PrefixRecord
    length: int


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="prefix-writer", daemon=True).start()


class PrefixFiles:
    """The prefixes on one shelf that belong to one origin."""

    def __init__(
        self,
        shelf: Shelf,
        origin: PrefixOrigin,
        limit: int,
        *,
        begin: Callable[[Callable[[], None]], None] = _in_thread,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        """`limit` bounds the bytes of all files. `begin` starts the writing of one."""
        self._shelf = shelf
        self._origin = origin
        self._limit = limit
        self._begin = begin
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: dict[str, list[bytes]] = {}
        """The keys of each file that was looked at; none of one that is of no use."""
        self._held: dict[str, int] = {}
        self._names: dict[bytes, set[str]] = {}
        self._is_writing = False
        self._listed_at = self._paused_until = -PAUSE_S
        self._list()

    def find(self, asked: Fetch) -> FoundPrefix | None:
        """The longest stored prefix that is of use, whole and seen to be right."""
        keys = self._keys_of(asked.scope, asked.tokens)
        for _ in range(TRIES_MAX):
            name, depth = self._longest(keys, asked)
            if depth < len(keys) and self._clock() - self._listed_at >= LIST_S_MIN:
                self._list()
                name, depth = self._longest(keys, asked)
            if not depth:
                return None
            length = depth * CHUNK_TOKENS
            try:
                record = decoded(self._shelf.read(name))
            except OSError:
                self._forget(name)  # until it is listed again
                continue
            if record is not None and self._is_of(record, asked, length):
                with suppress(OSError):
                    self._shelf.use(name)
                return FoundPrefix(record, length)
            self._index(name, (), 0)  # until somebody writes it anew
        return None

    def wants(self, scope: str, tokens: Sequence[int]) -> bool:
        """Whether a prefix of these tokens would be written now, and is not there."""
        if self._is_writing or self._clock() < self._paused_until:
            return False
        keys = self._keys_of(scope, tokens)
        return bool(keys) and keys[-1] not in self._names

    def put(
        self, scope: str, tokens: Sequence[int], usable_count: int, memory: Sequence[Piece]
    ) -> None:
        """Write what a slot holds, for later. Its caller was told that it is wanted."""
        memory_bytes = sum([memoryview(each).nbytes for each in memory])
        origin = self._origin
        head = PrefixHead(
            VERSION, origin.model, origin.shape, scope, len(tokens), usable_count, memory_bytes
        )
        self._is_writing = True

        def write() -> None:
            try:
                self._write(head, tokens, memory)
            except OSError as error:
                self._paused_until = self._clock() + PAUSE_S
                _log.warning("A prefix could not be stored (%s); none is for %g s", error, PAUSE_S)
            finally:
                self._is_writing = False

        try:
            self._begin(write)
        except RuntimeError:  # there are no more threads
            self._is_writing = False

    def _write(self, head: PrefixHead, tokens: Sequence[int], memory: Sequence[Piece]) -> None:
        keys = self._keys_of(head.scope, tokens[: head.usable_count])
        name = blake2b(keys[-1] + token_bytes(tokens), digest_size=16).hexdigest() + ENDING
        size = START_BYTES + 4 * len(tokens) + head.memory_bytes + DIGEST_BYTES
        with self._shelf.locked() as is_held:
            if not is_held or size > self._limit:
                return
            self._make_room(size)
            self._shelf.write(name, encoded(head, tokens, memory))
        self._index(name, keys, len(tokens))

    def _make_room(self, size: int) -> None:
        """Remove those that were not used for longest, until so many bytes fit the budget."""
        files = self._shelf.listed()
        total = sum(each.bytes for each in files.values())
        for name in sorted(files, key=lambda each: files[each].used_ns):
            if total + size <= self._limit and len(files) < FILES_MAX:
                return
            self._shelf.remove(name)
            total -= files.pop(name).bytes
            self._forget(name)

    def _keys_of(self, scope: str, tokens: Sequence[int]) -> list[bytes]:
        """A key for each whole chunk."""
        key = blake2b(digest_size=16)
        for part in (self._origin.model, self._origin.shape, scope):
            key.update(f"{len(part)}:{part}".encode())
        keys = [key.digest()]
        for start, end in pairwise(range(0, len(tokens) + 1, CHUNK_TOKENS)):
            chunk = token_bytes(tokens[start:end])
            keys.append(blake2b(keys[-1] + chunk, digest_size=16).digest())
        return keys[1:]

    def _longest(self, keys: list[bytes], asked: Fetch) -> tuple[str, int]:
        """The file with the most tokens that are of use, and their chunks; 0 where none is."""
        with self._lock:
            for depth in range(len(keys), 0, -1):
                length = depth * CHUNK_TOKENS
                if length < asked.least:
                    break
                held_max = min(asked.held_max, PART_MIN * length)
                names = self._names.get(keys[depth - 1], ())
                fitting = [each for each in names if self._held[each] <= held_max]
                if fitting:
                    return min(fitting, key=lambda each: (self._held[each], each)), depth
        return "", 0

    def _is_of(self, record: PrefixRecord, asked: Fetch, length: int) -> bool:
        """Whether it is what its name says, and not what somebody put in its place."""
        head, origin = record.head, self._origin
        is_ours = (head.model, head.shape, head.scope) == (origin.model, origin.shape, asked.scope)
        has_length = length <= head.usable_count and head.token_count <= asked.held_max
        return is_ours and has_length and record.tokens[:length] == asked.tokens[:length]

    def _list(self) -> None:
        """Look at files that came or went since the last time."""
        self._listed_at = self._clock()
        try:
            files = self._shelf.listed()
        except OSError:
            return
        for name in self._keys.keys() - files.keys():
            self._forget(name)
        for name in sorted(files.keys() - self._keys.keys())[:FILES_MAX]:
            self._look_at(name)

    def _look_at(self, name: str) -> None:
        """Index a file by its head, which may still turn out to be damaged."""
        keys: Sequence[bytes] = ()
        held = 0
        with suppress(OSError):
            found = head_of(self._shelf.read(name, START_BYTES))
            origin = self._origin
            if found and (found[0].model, found[0].shape) == (origin.model, origin.shape):
                head, start = found
                end = start + 4 * head.usable_count
                content = self._shelf.read(name, end)
                if len(content) == end:
                    keys = self._keys_of(head.scope, tokens_of(memoryview(content)[start:]))
                    held = head.token_count
        self._index(name, keys, held)

    def _index(self, name: str, keys: Sequence[bytes], held: int) -> None:
        """From now on these are the keys of the file."""
        with self._lock:
            self._drop(name)
            self._keys[name], self._held[name] = list(keys), held
            for key in keys:
                self._names.setdefault(key, set()).add(name)

    def _forget(self, name: str) -> None:
        """The file is gone."""
        with self._lock:
            self._drop(name)
            self._keys.pop(name, None)
            self._held.pop(name, None)

    def _drop(self, name: str) -> None:
        for key in self._keys.get(name, ()):
            names = self._names[key]
            names.discard(name)
            if not names:
                del self._names[key]
