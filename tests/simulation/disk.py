"""The disk of a world: a dictionary that outlives every process, and fetches that take their time.

The files are those of production (`jitney.backends.shared.prefix_files`) with the dictionary in
place of the folder. What it gives back may be damaged, or gone; and beside each file stands one of
another machine, with the same tokens and other numbers in its memory.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from jitney.backends.shared.prefix_files import PrefixFiles, PrefixOrigin
from jitney.backends.shared.prefix_folder import FileStat
from jitney.backends.shared.prefix_record import Piece, decoded
from jitney.core.backend import Fetch, Fetched
from jitney.core.limits import FETCH_S_MAX
from jitney.errors import EngineError
from tests.simulation.seen import Answered, Asked, Tell
from tests.simulation.world import DiskHabits

CHUNK_TOKENS = 8
ORIGIN = PrefixOrigin("model", "shape")
ELSEWHERE = PrefixOrigin("model", "shape of another machine")
NEVER_S = 1e9


def files_on(
    shelf: "DictShelf", origin: PrefixOrigin, limit: int, clock: Callable[[], float]
) -> PrefixFiles:
    """What a process knows of the shelf that starts now. It writes at once."""
    return PrefixFiles(shelf, origin, limit, begin=lambda write: write(), clock=clock)


class DictShelf:
    """Implements `jitney.backends.shared.prefix_files.Shelf`."""

    def __init__(self, habits: DiskHabits, random: Random) -> None:
        self._habits = habits
        self._random = random
        self._files: dict[str, bytes] = {}
        self._used: dict[str, int] = {}
        self._uses = 0
        self._is_foreign = False
        self.fed: dict[tuple[int, ...], set[str]] = {}
        """Who fed what was stored, by its tokens: for the checker `scope`."""

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(map(len, self._files.values()))

    def listed(self) -> dict[str, FileStat]:
        """The files that are there."""
        return {name: FileStat(len(each), self._used[name]) for name, each in self._files.items()}

    def read(self, name: str, bytes_max: int | None = None) -> Piece:
        """A file, or what is left of it."""
        if name not in self._files:
            raise FileNotFoundError(name)
        content = bytearray(self._files[name][:bytes_max])
        if self._random.random() < self._habits.damage:
            kind = self._random.choice(("flip", "rot", "rot", "cut", "gone"))
            if kind == "gone":
                raise OSError("the disk cannot read it")
            if kind == "cut":
                return content[: self._random.randrange(len(content))]
            if kind == "rot":
                start = self._random.randrange(len(content))
                content[start:] = bytes(each ^ 1 for each in content[start:])
                return content
            content[self._random.randrange(len(content))] ^= 1 << self._random.randrange(8)
        return content

    def write(self, name: str, pieces: Iterable[Piece]) -> None:
        """Make a file; and one of another machine after it, where there is room for both."""
        if self._random.random() < self._habits.full:
            raise OSError("the disk is full")
        self._files[name] = b"".join(pieces)
        self.use(name)
        record = decoded(self._files[name])
        assert record is not None, "a file is whole when it is written"
        if not self._is_foreign:
            self._is_foreign = True
            other = files_on(
                self, ELSEWHERE, self._habits.limit - len(self._files[name]), lambda: 0.0
            )
            numbers = bytes(each ^ 1 for each in record.memory)
            other.put(record.head.scope, record.tokens, record.head.usable_count, [numbers])
            self._is_foreign = False

    def use(self, name: str) -> None:
        """Somebody used it."""
        self._uses += 1
        self._used[name] = self._uses

    def remove(self, name: str) -> None:
        """Remove a file."""
        self._files.pop(name, None)

    @contextmanager
    def locked(self) -> Iterator[bool]:
        """Nobody else writes, or somebody does."""
        yield self._is_foreign or self._random.random() >= self._habits.full


@dataclass(slots=True)
class UnderWay:
    """A fetch: when it is read, and when its answer is there."""

    fetch: Fetch
    read_at: float
    answered_at: float
    found: Fetched | None = None


class SlowFetcher:
    """Reads one after the other, and answers when it pleases."""

    def __init__(
        self,
        fetch: Callable[[Fetch], Fetched],
        answer: Callable[[Fetched], None],
        now: Callable[[], float],
        tell: Tell,
        habits: DiskHabits,
        random: Random,
    ) -> None:
        self._fetch, self._answer, self._now, self._tell = fetch, answer, now, tell
        self._habits = habits
        self._random = random
        self._under_way: list[UnderWay] = []

    def ask(self, asked: Fetch) -> None:
        """Take a fetch, and do not wait."""
        now = self._now()
        self._tell(Asked(now, asked))
        delay_s = self._random.choice((0.0, 0.001, 0.1))
        later_s = self._random.choice((0.0, 0.0, 0.01, 1.0))
        if self._random.random() < self._habits.slow:
            slow_s = self._random.choice((FETCH_S_MAX / 2, FETCH_S_MAX + 1.0, NEVER_S))
            delay_s, later_s = self._random.choice(((slow_s, 0.0), (0.0, slow_s)))
        self._under_way.append(UnderWay(asked, now + delay_s, now + delay_s + later_s))

    @property
    def due_at(self) -> float | None:
        """When something happens next."""
        times = [each.answered_at if each.found else each.read_at for each in self._under_way]
        return min([each for each in times if each < NEVER_S], default=None)

    def run(self) -> None:
        """Read and answer what is due."""
        now = self._now()
        for each in list(self._under_way):
            if each.found is None and each.read_at <= now:
                each.found = self._read(each.fetch)
            if each.found is not None and each.answered_at <= now:
                self._under_way.remove(each)
                self._tell(Answered(now, each.found))
                self._answer(each.found)

    def settle(self) -> None:
        """Answer everything now."""
        for each in self._under_way:
            each.read_at = each.answered_at = self._now()
        self.run()

    def _read(self, asked: Fetch) -> Fetched:
        try:
            return self._fetch(asked)
        except EngineError:
            return Fetched(asked.ticket)
