"""What a tick costs: `Cost`, a sum of curves over what is in the batch. Saved as a JSON file.

    seconds = decodes(rows), for each run of neighbouring slots that generate
            + spans(prompt tokens), from one curve beside decodes and from another without
            + seconds for each prompt in the batch, and for each that gets its first token
            + context(tokens it looks back at), for each sequence that generates
            + seconds for each token that the tokens of prompts look back at

Curves are straight between measured sizes, and go on straight beyond them. What the engine does
between two passes is apart: it delays the next tick, and not the tokens of this one.

Some backends compute only neighbouring slots together, and others one after the other: sixteen
sequences in scattered slots can take twice the time of sixteen in a row. `Cost.gap` and
`Cost.group` say how it is here (`runs_of`).
"""

import codecs
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from jitney.backends.shared.sizing import LENGTH_SHARED
from jitney.core.backend import Traits
from jitney.core.batch import Batch
from jitney.core.limits import TOKENS_MAX
from jitney.errors import ConfigError, SetupError

FORMAT: Final = "jitney-cost-1"
SIZE_MAX = 1_048_576
SPARE_MIN = 4
CURVES = ("decodes", "spans_alone", "spans_beside", "contexts")

SECONDS_MAX = 86_400.0
"""Beyond it, virtual time would soon have no room for what takes milliseconds."""

DOUBTED = 0.15
"""A cost with a larger error of a tick says little about settings that are near each other."""

Seconds = Annotated[float, msgspec.Meta(ge=0, le=SECONDS_MAX)]
BatchSize = Annotated[int, msgspec.Meta(ge=0, le=SIZE_MAX)]
Points = Annotated[
    tuple[tuple[BatchSize, Seconds], ...], msgspec.Meta(min_length=1, max_length=256)
]


class Curve:
    """A time by size: straight between points, and beyond them. It never falls below zero.

    Beyond the last point it rises as in the upper half before it: the last two points alone may be
    a step.
    """

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        self._points = sorted(points)
        assert self._points, "a curve has at least one point"
        self._known: list[float] = []

    def seconds(self, size: int) -> float:
        """The time of this size."""
        known = self._known
        while len(known) <= size:
            known.append(self._between(len(known)))
        return known[size]

    def _between(self, size: int) -> float:
        points = self._points
        if len(points) == 1:
            return points[0][1]
        at = 0
        while at < len(points) - 2 and points[at + 1][0] < size:
            at += 1
        (low, low_s), (high, high_s) = points[at], points[at + 1]
        if size > high:
            half = [each for each in points[:-1] if 2 * each[0] <= high]
            low, low_s = half[-1] if half else points[0]
        return max(0.0, low_s + (high_s - low_s) * (size - low) / (high - low))


def runs_of(slots: Iterable[int], group: int, gap: int | None) -> list[int]:
    """How many slots are computed together, run by run; empty without slots.

    Slots are computed in whole groups. A gap of up to `gap` slots is filled, and at a larger one
    another run begins. With None it does not matter which slots they are.
    """
    if gap is None:
        count = sum(1 for _ in slots)
        return [count] if count else []
    found: list[int] = []
    begun = end = 0
    for slot in sorted(slots):
        low = slot - slot % group
        if end and low - end > gap:
            found.append(end - begun)
            end = 0
        if not end:
            begun = low
        end = low + group
    if end:
        found.append(end - begun)
    return found


class BackendTraits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of the backend that the scheduler needs; `slots` are those it was loaded for."""

    name: str
    slots: Annotated[int, msgspec.Meta(ge=1, le=SIZE_MAX)]
    slots_max: Annotated[int, msgspec.Meta(ge=1, le=SIZE_MAX)]
    kv_tokens: Annotated[int, msgspec.Meta(ge=2, le=TOKENS_MAX)]
    model_len_max: Annotated[int, msgspec.Meta(ge=2, le=TOKENS_MAX)]
    block_tokens: Annotated[int, msgspec.Meta(ge=1, le=SIZE_MAX)]
    can_save: bool
    can_store: bool = False
    kv_bytes_per_token: Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)]
    state_bytes: Annotated[int, msgspec.Meta(ge=0, le=TOKENS_MAX)] = 0
    batch_invariant: bool
    decodes_differ: bool

    def at(self, slots: int, kv_tokens: int | None, length: int | None = None) -> Traits:
        """The traits with another number of slots, or with other memory. Raises ConfigError.

        Memory that is given is taken as it is, in whole blocks. Without, it is in proportion, and
        there is room for a sequence of `length` tokens: `max_model_len`, as far as it is known.
        """
        if kv_tokens is None:
            longest = length or min(self.model_len_max, LENGTH_SHARED)
            least = min(self.kv_tokens, -(-longest // self.block_tokens) * self.block_tokens)
            kv_tokens = max(self.kv_tokens * slots // self.slots, least)
        if kv_tokens < self.block_tokens:
            raise ConfigError(
                f"kv_tokens is {kv_tokens}, and {self.name} takes memory in blocks of "
                f"{self.block_tokens} tokens; raise it."
            )
        # Spare slots are for cached prefixes. There are fewer of them where there are fewer slots.
        spare = self.slots_max - self.slots
        spare = max(min(spare, SPARE_MIN), spare * min(slots, self.slots) // self.slots)
        values = msgspec.structs.asdict(self) | {
            "slots_max": slots + max(0, spare),
            "kv_tokens": kv_tokens - kv_tokens % self.block_tokens,
        }
        del values["slots"]
        return Traits(**values)


def traits_of(traits: Traits, slots: int) -> BackendTraits:
    """The traits of a backend that was loaded for so many slots."""
    return msgspec.convert({**asdict(traits), "slots": slots}, BackendTraits)


class Cost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ticks cost with one model, on one machine."""

    format: Literal["jitney-cost-1"] = FORMAT
    model: str
    machine: str
    measured_at: str
    traits: BackendTraits
    decodes: Points
    """Seconds by the rows of a run of slots that generate: sequences, and fillers between."""
    spans_alone: Points
    """Seconds by the prompt tokens of a tick in which nobody generates."""
    spans_beside: Points
    """Seconds that prompt tokens add to a tick in which others generate."""
    prompt_s: Seconds
    """Seconds for each prompt that has a part in the tick."""
    first_s: Seconds
    """Seconds for each prompt that ends in the tick, and so gets its first token."""
    contexts: Points
    """Seconds by the number of tokens that one generating sequence looks back at."""
    prompt_context_s: Seconds
    """Seconds for each token that a token of a prompt looks back at."""
    host_s: Seconds
    """Seconds between two passes."""
    host_sequence_s: Seconds
    """Seconds between two passes for each sequence of the first."""
    error: Seconds
    """How far a tick is from the fit, as a share, in the mean of the ticks it was fitted to."""
    tick_count: BatchSize
    """How many ticks it was fitted to."""
    group: Annotated[int, msgspec.Meta(ge=1, le=256)] = 1
    """Generating slots are computed in whole groups of so many."""
    gap: Annotated[int, msgspec.Meta(ge=0, le=256)] | None = None
    """Slots farther apart are computed one after the other; None: all together."""
    backend_process: bool | None = None
    """Whether the backend ran in a process of its own; None: the file does not say."""
    stolen_share: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """The part of the processors that other machines took meanwhile; None: that is not known."""


class TickCost:
    """Says what batches take, quickly. One for each replica or many; it keeps tables."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._decodes = Curve(cost.decodes)
        self._alone = Curve(cost.spans_alone)
        self._beside = Curve(cost.spans_beside)
        self._contexts = Curve(cost.contexts)

    def pass_s(self, batch: Batch) -> float:
        """Seconds from the start of a batch to its tokens."""
        prompts = firsts = tokens = pairs = 0
        decodes: list[int] = []
        seconds = 0.0
        context_s = self._contexts.seconds
        for entry in batch.entries:
            length = 1 if entry.continues else len(entry.tokens)
            if length == 1 and entry.wants_token:
                decodes.append(entry.slot)
                seconds += context_s(entry.start)
            else:
                prompts += 1
                tokens += length
                pairs += length * (2 * entry.start + length) // 2
                firsts += entry.wants_token
        cost = self._cost
        for rows in runs_of(decodes, cost.group, cost.gap):
            seconds += self._decodes.seconds(rows)
        if prompts:
            curve = self._beside if decodes else self._alone
            seconds += curve.seconds(tokens) + cost.prompt_context_s * pairs
            seconds += cost.prompt_s * prompts + cost.first_s * firsts
        return seconds

    def host_s(self, batch: Batch) -> float:
        """Seconds from the tokens of a batch to the start of the next."""
        return self._cost.host_s + self._cost.host_sequence_s * len(batch.entries)


def read_cost(path: Path) -> Cost:
    """The cost in a file. Raises ConfigError."""
    try:
        # Some editors write a mark at the start of a file.
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        cost = msgspec.json.decode(content, type=Cost)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is not a file that jitney plan --save-cost wrote: {str(error).rstrip('.')}."
        ) from None
    for name in CURVES:
        sizes = [size for size, _ in getattr(cost, name)]
        if len(set(sizes)) < len(sizes):
            raise ConfigError(f"{path} has two times for one size in {name}; measure again.")
    if max(cost.decodes)[0] < 1:
        raise ConfigError(f"{path} has no number of sequences in decodes; measure again.")
    return cost


def write_cost(cost: Cost, path: Path) -> None:
    """Save a cost. Raises SetupError."""
    content = msgspec.json.format(msgspec.json.encode(cost), indent=1) + b"\n"
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SetupError(f"{path} cannot be written: {error.strerror}.") from None
