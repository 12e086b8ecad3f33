"""Workloads: which requests arrive when, and how long they are. Seeded, and the same everywhere.

A job has lengths only. Its prompt is made from the seed when it is sent, as token ids for an engine
or as text for a server, so one workload serves engines, servers and simulations.
"""

import codecs
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.errors import ConfigError

WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life"),
    *("child", "world", "school", "state", "family", "student", "group", "country"),
    *("problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "government", "number", "night", "point"),
    *("home", "water", "room", "mother", "area", "money", "story", "fact", "month"),
    *("lot", "right", "study", "book", "eye", "job", "word", "business", "issue"),
    *("side", "kind", "head", "house", "service", "friend", "father", "power"),
    *("hour", "game", "line", "end", "member", "law", "car", "city", "community"),
    *("name", "president", "team", "minute", "idea", "body", "information", "back"),
)
"""Common words: nearly every vocabulary has each as one token."""

JOBS_MAX = 5_000_000
"""A line and its job take about 400 bytes, so this is two gigabytes."""

LINE_BYTES_MAX = 2**20
"""The longest line of a trace. Published ones have lists of block hashes, of some kilobytes."""

LENGTH_MAX = 10_000_000

EPOCH_UNITS = (("seconds", 1e9, 1.0), ("microseconds", 1e14, 1e-6), ("nanoseconds", 1e17, 1e-9))
"""Units of a clock that began in 1970: the name, the smallest number of our days, and the seconds.
Each reaches up to a hundred times that number. In milliseconds, these days are beyond 1e12."""

EPOCH_RATIO = 100.0

Say = Callable[[str], None]
"""Shows people a sentence: what is measured now, how their files are understood."""

Choice = TypeVar("Choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One request: when it arrives, and its lengths in tokens."""

    number: int
    at_s: float = 0.0
    """Seconds after the start; not used where clients ask again and again."""
    prompt_count: int
    completion_count: int
    prefix_count: int = 0
    """How many of its first tokens it shares with the others that share some."""

    def tokens(self, seed: int, vocabulary: Sequence[int]) -> tuple[int, ...]:
        """Its prompt as token ids, of those that are text."""
        return tuple(self._draw(seed, vocabulary))

    def text(self, seed: int) -> str:
        """Its prompt as words, about one token each."""
        return " ".join(self._draw(seed, WORDS))

    def request(self, prompt: tuple[int, ...]) -> Request:
        """Its request with a prompt: the likeliest tokens, exactly as many as it wants."""
        params = _params(self.completion_count)
        return Request(id=RequestId(str(self.number)), prompt=prompt, params=params, seed=0)

    def _draw(self, seed: int, choices: Sequence[Choice]) -> list[Choice]:
        prefix = random.Random(f"{seed} prefix 0")
        own = random.Random(f"{seed} job {self.number}")
        shared = prefix.choices(choices, k=self.prefix_count)
        return shared + own.choices(choices, k=self.prompt_count - self.prefix_count)


@lru_cache(maxsize=4096)
def _params(completion_count: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=completion_count, ignore_eos=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Jobs in the order of their arrival.

    With `clients`, so many clients each ask again as soon as they have their answer (a closed
    loop). Without, every job is sent at its time (an open loop).
    """

    name: str
    seed: int
    jobs: tuple[Job, ...]
    clients: int | None = None

    @property
    def token_count(self) -> int:
        """The tokens of all prompts and answers together."""
        return sum(each.prompt_count + each.completion_count for each in self.jobs)

    def scaled(self, factor: float) -> "Workload":
        """The same jobs, arriving `factor` times as fast."""
        jobs = tuple(replace(each, at_s=each.at_s / factor) for each in self.jobs)
        return replace(self, jobs=jobs)


def make_workload(
    name: str,
    seed: int,
    lengths: Sequence[tuple[int, int]],
    *,
    per_s: float | None = None,
    clients: int | None = None,
) -> Workload:
    """Jobs with these lengths of prompts and answers: a Poisson stream, or all at once."""
    times = arrival_times(len(lengths), per_s or math.inf, burstiness=1.0, seed=seed)
    jobs = tuple(
        Job(number=number, at_s=at_s, prompt_count=prompt, completion_count=completion)
        for number, (at_s, (prompt, completion)) in enumerate(zip(times, lengths, strict=True))
    )
    return Workload(name=name, seed=seed, jobs=jobs, clients=clients)


def mixed(
    count: int, *, seed: int, per_s: float | None = None, clients: int | None = None
) -> Workload:
    """Answers of very different length: what static batches are bad at."""
    source = random.Random(f"{seed} mixed")
    lengths = [
        (source.choice((16, 24, 48, 96)), source.choice((3, 3, 10, 30, 30, 60)))
        for _ in range(count)
    ]
    return make_workload("mixed", seed, lengths, per_s=per_s, clients=clients)


def equal(count: int, *, seed: int) -> Workload:
    """All lengths are equal, and all come at once: the control.

    If `count` is a multiple of the slots, full groups follow each other and waste nothing. In a
    closed loop a group would have to wait for the last client of the group before it.
    """
    return make_workload("equal", seed, [(32, 32)] * count)


def uneven(slots: int, *, seed: int) -> Workload:
    """Short answers and first a long one, all at once, in more than one group of `slots`.

    Fewer than one in twenty are long, so the p95 is that of a short answer. In groups it waits for
    the long one, and without groups it does not: on every machine, whatever a pass costs there.
    """
    count = max(24, slots + slots // 2)
    return make_workload("uneven", seed, [(4, 200)] + [(4, 3)] * (count - 1))


def twenty_clients(*, seed: int) -> Workload:
    """Twenty clients that want 50 to 200 tokens each, as in the seed documents."""
    source = random.Random(f"{seed} twenty")
    lengths = [(32, source.randint(50, 200)) for _ in range(20)]
    return make_workload("twenty", seed, lengths, clients=20)


def fixed(
    count: int, prompt_count: int, completion_count: int, *, seed: int, clients: int
) -> Workload:
    """All jobs alike, with so many clients."""
    return make_workload("fixed", seed, [(prompt_count, completion_count)] * count, clients=clients)


def random_lengths(
    count: int,
    input_len: int,
    output_len: int,
    *,
    seed: int,
    per_s: float | None = None,
    range_ratio: float = 0.0,
) -> Workload:
    """Jobs with these lengths, each up to `range_ratio` shorter or longer."""
    source = random.Random(f"{seed} lengths")

    def draw(length: int) -> int:
        low = max(1, math.floor(length * (1 - range_ratio)))
        return source.randint(low, math.ceil(length * (1 + range_ratio)))

    lengths = [(draw(input_len), draw(output_len)) for _ in range(count)]
    return make_workload("random", seed, lengths, per_s=per_s)


def arrival_times(count: int, per_s: float, *, burstiness: float, seed: int) -> list[float]:
    """When jobs arrive: gaps from a gamma distribution with this mean rate.

    A burstiness of 1 is a Poisson process; smaller is burstier, larger is more even.
    """
    source = random.Random(f"{seed} arrivals")
    at_s, times = 0.0, []
    for _ in range(count):
        times.append(at_s)
        if not math.isinf(per_s):
            at_s += source.gammavariate(burstiness, 1.0 / (per_s * burstiness))
    return times


def read_trace(
    path: Path, *, seed: int, per_s: float | None = None, say: Say = lambda text: None
) -> Workload:
    """A workload from a JSONL file: one object a line, as `TraceLine` names its fields.

    All lines have a time or none has. Without times the arrivals are drawn, as for random lengths;
    with them, `per_s` is refused. Times count from the first; those of a clock since 1970 that are
    not in milliseconds are converted, with a sentence. Raises ConfigError.
    """
    lines = _read_lines(path)
    times = [line.timestamp for line in lines if line.timestamp is not None]
    if not times:
        times = arrival_times(len(lines), per_s or math.inf, burstiness=1.0, seed=seed)
    elif per_s is None:
        lines.sort(key=lambda line: line.timestamp or 0.0)
        times = _seconds(sorted(times), path, say)
    else:
        raise ConfigError(
            f"{path} says when each request arrives, so --request-rate would not be used; leave it "
            "out, or take the timestamps out of the file."
        )
    arriving = enumerate(zip(lines, times, strict=True))
    jobs = tuple(line.job(number, at_s) for number, (line, at_s) in arriving)
    return Workload(name=path.stem, seed=seed, jobs=jobs)


def _seconds(times: list[float], path: Path, say: Say) -> list[float]:
    """The times of a trace as seconds since the first."""
    unit_s = 1e-3
    for unit, low, seconds in EPOCH_UNITS:
        if low <= times[0] and times[-1] < EPOCH_RATIO * low:
            unit_s = seconds
            say(
                f"The timestamps of {path} are taken as {unit} since 1970; if they are "
                "milliseconds, take the first one off all of them."
            )
    return [unit_s * (at - times[0]) for at in times]


def _read_lines(path: Path) -> "list[TraceLine]":
    """The requests of a trace; all of them have times, or none has. Raises ConfigError.

    Only the lengths and the time of each line are kept, of at most JOBS_MAX lines.
    """
    decoder = msgspec.json.Decoder(TraceLine)
    found: list[TraceLine] = []
    number = 0
    try:
        with path.open("rb") as lines:
            # A file without line ends would be read into memory as a whole.
            while line := lines.readline(LINE_BYTES_MAX):
                number += 1
                if len(line) == LINE_BYTES_MAX and not line.endswith(b"\n"):
                    raise ConfigError(
                        f"{path}, line {number} has above {LINE_BYTES_MAX:,} bytes; a trace has "
                        "one short JSON object a line."
                    )
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    found.append(decoder.decode(line))
                    has_time = found[-1].timestamp is not None
                    if has_time is (found[0].timestamp is None):
                        raise ConfigError(
                            f"{path}, line {number} has {'a' if has_time else 'no'} timestamp, "
                            "unlike the lines before it; give one to every line or to none."
                        )
                if len(found) > JOBS_MAX:
                    raise ConfigError(f"{path} has above {JOBS_MAX:,} requests; use a part of it.")
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path}, line {number}: {error}. Each line is an object with input_length and "
            "output_length."
        ) from None
    if not found:
        raise ConfigError(f"{path} has no requests; it needs one JSON object a line.")
    return found


Length = Annotated[int, msgspec.Meta(ge=1, le=LENGTH_MAX)]
Moment = Annotated[float, msgspec.Meta(ge=0)]


class TraceLine(msgspec.Struct):
    """One line of a trace. The names are those of published traces; others are ignored."""

    input_length: Length
    """Tokens of the prompt."""
    output_length: Length
    """Tokens of the completion."""
    timestamp: Moment | None = None
    """When it arrived, in milliseconds (`EPOCH_UNITS` for a clock); None if it is not known."""

    def job(self, number: int, at_s: float) -> Job:
        """The request of this line."""
        return Job(
            number=number,
            at_s=at_s,
            prompt_count=self.input_length,
            completion_count=self.output_length,
        )
