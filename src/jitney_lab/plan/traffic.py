"""What arrives: the kinds of requests and how evenly they come, or a recording of real traffic.

A recording is a JSONL trace, or the file that `jitney trace` saves of a running server. It can be
replayed as it was, or its requests are drawn at random for loads that it did not have.
"""

import codecs
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from jitney.errors import ConfigError
from jitney_lab.bench.workload import LENGTH_MAX, Job, Say, Workload, arrival_times, read_trace

HEAD_BYTES = 4096
BYTES_MAX = 2**30
REQUESTS_MAX = 1_000_000
"""Of a recording. They are simulated in each process, with about a kilobyte each."""

SPAN_S_MAX = 1e9
SPAN_S_DOUBTFUL = 31 * 86_400.0
"""A longer recording may have another unit of time."""

BUSIEST_S, BUSIEST_COUNT = 60.0, 50
"""The busiest part of a recording has this length, or the one with so many requests in the mean:
in a shorter one, chance would make the most of a few."""

KINDS_MAX = 20_000
"""Kinds of requests that are drawn from; each simulation gets a copy."""

REQUESTS_PROCESS = 2
"""The process of a recording that has the requests."""

COMPLETE = ("stop", "length")
"""How a request ends that has its whole answer."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Kinds of requests, of which each arrival is one, drawn at random."""

    name: str
    kinds: tuple[Job, ...]
    burstiness: float = 1.0

    def workload(self, count: int, per_s: float, *, seed: int) -> Workload:
        """So many requests at this rate; the same seed draws the same ones at every rate."""
        drawn = random.Random(f"{seed} kinds").choices(self.kinds, k=count)
        times = arrival_times(count, per_s, burstiness=self.burstiness, seed=seed)
        return Workload(name=self.name, seed=seed, jobs=_numbered(drawn, times))

    def closed(self, count: int, clients: int, *, seed: int) -> Workload:
        """So many requests of clients that ask again as soon as they have their answer."""
        return replace(self.workload(count, float("inf"), seed=seed), clients=clients)

    @property
    def completion_mean(self) -> float:
        """Tokens of an answer, in the mean."""
        return sum(each.completion_count for each in self.kinds) / len(self.kinds)

    @property
    def completion_max(self) -> int:
        """Tokens of the longest answer."""
        return max(each.completion_count for each in self.kinds)

    @property
    def prompt_max(self) -> int:
        """Tokens of the longest prompt."""
        return max(each.prompt_count for each in self.kinds)

    @property
    def length_max(self) -> int:
        """Tokens of the longest request with its answer."""
        return max(each.prompt_count + each.completion_count for each in self.kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class BusiestPart:
    """The part of a recording with the most requests. Times are seconds."""

    per_s: float
    at_s: float
    """When it begins, counted from the first request."""
    span_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRates:
    """The rates of a recording with times, as it was."""

    count: int
    span_s: float
    mean_per_s: float
    busiest: BusiestPart | None
    """None where the recording is too short to have parts."""


def read_recording(path: Path, *, seed: int, say: Say) -> Workload:
    """The requests of a JSONL trace, or of a file that `jitney trace` saved. Raises ConfigError.

    If some are left out, it says so.
    """
    try:
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
            is_trace = b'"traceEvents"' in head
            content = head + file.read(BYTES_MAX) if is_trace else b""
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    if len(content) > BYTES_MAX:
        raise ConfigError(f"{path} has above {BYTES_MAX:,} bytes; record for a shorter time.")
    read = partial(_read_events, content=content) if is_trace else read_trace
    workload = read(path, seed=seed, say=say)
    if len(workload.jobs) > REQUESTS_MAX:
        raise ConfigError(f"{path} has above {REQUESTS_MAX:,} requests; use a part of it.")
    span_s = workload.jobs[-1].at_s
    if span_s > SPAN_S_MAX:
        raise ConfigError(
            f"{path} goes over {span_s:.0e} seconds, which is too long; a timestamp of a trace is "
            "in milliseconds."
        )
    if span_s > SPAN_S_DOUBTFUL:
        say(
            f"{path} goes over {span_s / 86_400:,.0f} days; if it should not, its timestamps are "
            "not the milliseconds that a trace has."
        )
    return workload


def _read_events(path: Path, *, content: bytes, seed: int, say: Say) -> Workload:
    """The requests in what `jitney trace` saved that have their whole answer. Raises ConfigError.

    How long the other answers would have been is not known.
    """
    try:
        # Some editors write a mark at the start of a file.
        content = content.removeprefix(codecs.BOM_UTF8)
        events = msgspec.json.decode(content, type=_Recording).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not a trace that jitney trace saved: {str(error).rstrip('.')}."
        ) from None
    known = [each for each in events if each.pid == REQUESTS_PROCESS and each.args.prompt_tokens]
    rows = [each for each in known if each.args.ending in COMPLETE]
    rows.sort(key=lambda each: each.ts)
    if not rows:
        raise ConfigError(
            f"{path} has no requests with a whole answer; save a trace after the server gave some."
        )
    if len(rows) < len(known):
        say(
            f"{len(known) - len(rows):,} of {len(known):,} requests of {path} are left out: they "
            "had not ended, or failed or were cancelled, so the length of their answers is not "
            "known."
        )
    kinds = [kind for row in rows for kind in row.kinds()]
    times = [(row.ts - rows[0].ts) / 1e6 for row in rows for _ in row.kinds()]
    return Workload(name=path.stem, seed=seed, jobs=_numbered(kinds, times))


def drawn_from(workload: Workload, burstiness: float) -> Traffic:
    """Traffic with the requests of a recording; of a long one, with many drawn at random."""
    kinds = workload.jobs
    if len(kinds) > KINDS_MAX:
        kinds = tuple(random.Random(f"{workload.seed} sample").sample(kinds, KINDS_MAX))
    return Traffic(workload.name, kinds, burstiness)


def arriving(workload: Workload, per_s: float, burstiness: float) -> Workload:
    """The requests of a recording in their order, with drawn arrivals."""
    jobs = workload.jobs
    times = arrival_times(len(jobs), per_s, burstiness=burstiness, seed=workload.seed)
    return replace(workload, jobs=_numbered(jobs, times))


def rates_of(workload: Workload) -> TraceRates | None:
    """The rates of a recording; None if it does not say when its requests arrive: all at once."""
    times = [job.at_s for job in workload.jobs]
    count, span_s = len(times), times[-1] - times[0]
    if not span_s:
        return None
    mean_per_s = count / span_s
    return TraceRates(
        count=count, span_s=span_s, mean_per_s=mean_per_s, busiest=_busiest(times, mean_per_s)
    )


def _busiest(times: Sequence[float], mean_per_s: float) -> BusiestPart | None:
    span_s = max(BUSIEST_S, BUSIEST_COUNT / mean_per_s)
    if span_s >= times[-1] - times[0]:
        return None
    most = first = at = 0
    for last, at_s in enumerate(times):
        while at_s - times[first] >= span_s:
            first += 1
        if last - first >= most:
            most, at = last - first + 1, first
    return BusiestPart(per_s=most / span_s, at_s=times[at] - times[0], span_s=span_s)


def _numbered(kinds: Sequence[Job], times: Sequence[float]) -> tuple[Job, ...]:
    return tuple(
        replace(kind, number=number, at_s=at_s)
        for number, (kind, at_s) in enumerate(zip(kinds, times, strict=True))
    )


Count = Annotated[int, msgspec.Meta(ge=0, le=LENGTH_MAX)]


class _Arguments(msgspec.Struct):
    prompt_tokens: Count | None = None
    completion_tokens: Count = 0
    cached_tokens: Count = 0
    completions: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    ending: str | None = None


class _TraceEvent(msgspec.Struct):
    """An event of a recording. Those of requests have their lengths in `args`."""

    pid: int = 0
    ts: float = 0.0
    args: _Arguments = msgspec.field(default_factory=_Arguments)

    def kinds(self) -> list[Job]:
        """Its completions. They share what was in the cache: it is the head of all prompts."""
        args = self.args
        prompt_count = args.prompt_tokens or 1
        kind = Job(
            number=0,
            prompt_count=prompt_count,
            completion_count=max(1, -(-args.completion_tokens // args.completions)),
            prefix_count=min(args.cached_tokens, prompt_count - 1),
        )
        return [kind] * args.completions


class _Recording(msgspec.Struct):
    traceEvents: list[_TraceEvent]
