"""The state of the scheduler at one moment: `Snapshot` in numbers, `Detail` for people.

A snapshot is taken before and after every batch. It uses counts and the running sequences, never
all slots: a tick must not be slower because many prefixes are cached. The detail (which sequence
holds what, and why others wait) is made on demand, on the thread of the scheduler. Its reasons are
in the order of the next admission: what each would find if those before it took no room.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import NamedTuple

from jitney.core.admission import LOOKAHEAD, Admission
from jitney.core.prefix import Holding
from jitney.core.registry import Registry
from jitney.core.request import Priority, RequestId
from jitney.core.rules.background import background_of
from jitney.core.rules.cost import Fit
from jitney.core.scheduler_settings import SchedulerSettings, Strategy
from jitney.core.sequence import Sequence, SequenceState
from jitney.core.value import named_value

WAITING_SHOWN_MAX = 256
PREFIX_SHOWN_STRIDES = 8
"""Slots count as holding the same prefix if so many first strides are the same. A router compares
prefixes in steps of as many."""


@named_value
class Snapshot:
    """Levels and counters. Memory is counted in whole blocks; shared ones count once."""

    running_count: int
    prefilling_count: int
    """Running sequences that have more to compute than their last token."""
    waiting_count: int
    paused_count: int
    """Sequences that their callers paused. They do not count as waiting."""
    waiting_tokens: int
    background_running: int = 0
    """Of the running sequences, those of background requests."""
    background_waiting: int = 0
    background_tokens: int = 0
    """Of the waiting sequences and their tokens, those of background requests."""
    prefill_left: int = 0
    """Tokens that running sequences have to compute before they generate."""
    deferred_count: int
    """Waiting sequences that wait for a prefix, a window, a group, another suspect, their tenant's
    share or live sequences, not for room."""
    cached_count: int
    """Slots without a running sequence, kept for their prefixes."""
    kv_tokens: int
    kv_used: int
    kv_cached: int
    slot_count: int
    """Sequences that may run at once."""
    fit: Fit | None
    """The time of a tick of decodes; None before the first."""
    prefill_token_s: float | None = None
    """The time of one more prefill token in a tick; None before the first."""
    counters: Mapping[str, int]

    @property
    def unfinished_count(self) -> int:
        """Sequences that have not ended."""
        return self.running_count + self.waiting_count + self.paused_count

    @property
    def is_work_due(self) -> bool:
        """Whether a forward pass should happen: not while all are paused or gathered."""
        return self.running_count > 0 or self.waiting_count > self.deferred_count


class SlotState(StrEnum):
    """What a slot is doing, derived from tokens known and tokens computed."""

    PREFILLING = "prefilling"
    GENERATING = "generating"
    CACHED = "cached"


class WaitReason(StrEnum):
    """What a waiting sequence waits for, as people read it."""

    SLOT = "every slot is taken"
    MEMORY = "there is not enough free memory"
    PREFIX = "another request computes its prefix"
    GROUP = "its group has not departed"
    WINDOW = "newcomers are gathered for a moment"
    PAUSED = "its caller paused it"
    TRIAL = "it runs alone after failures"
    """It was in several batches that failed. Such sequences run one at a time."""
    SHARE = "its key runs as many as it may"
    """Or its sequences hold as much memory as they may."""
    LIVE = "live requests come first"
    """It is a background request."""
    BUDGET = "the next batch is full"
    TURN = "others are before it"
    NEXT = "it starts at the next tick"


class Stretch(NamedTuple):
    """A run of memory: tokens [start, end) of each of the `slots`, which share it."""

    start: int
    end: int
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One sequence that waits, and why."""

    request_id: RequestId
    index: int
    accepted_at: float
    token_count: int
    priority: Priority
    ran_before: bool
    reason: WaitReason


@dataclass(frozen=True, slots=True)
class SlotView:
    """One slot that holds something. Slots that are not listed are empty."""

    slot: int
    state: SlotState
    request_id: RequestId | None
    index: int | None
    token_count: int
    prefix: int | None = None
    """The key of its first PREFIX_SHOWN_STRIDES strides; None while it holds fewer."""
    known_count: int = 0
    """Tokens known of its sequence, the prompt and the completion; 0 without one."""


@dataclass(frozen=True, slots=True)
class Detail:
    """Slots, memory by stretches, and the first sequences of the queue."""

    at: float
    slots: tuple[SlotView, ...]
    stretches: tuple[Stretch, ...]
    waiting: tuple[Waiting, ...]
    tails: Mapping[RequestId, tuple[str, ...]] = field(default_factory=dict)
    """The last characters of every live completion. The engine adds them."""


def describe(admission: Admission, settings: SchedulerSettings, now: float) -> Detail:
    """Which sequence holds what, and why others wait. Changes nothing but what prefix look-ups
    remember."""
    registry = admission.registry
    ledger = registry.memory.ledger
    block = ledger.block_tokens
    stretches = tuple(
        Stretch(start * block, end * block, slots) for start, end, slots in ledger.runs()
    )
    owners = {sequence.slot: sequence for sequence in registry.running}
    held = sorted(registry.memory.holdings.items())
    slots = tuple(_slot_view(holding, owners.get(slot)) for slot, holding in held)
    return Detail(now, slots, stretches, tuple(_waiting(admission, settings, now)))


def _slot_view(holding: Holding, sequence: Sequence | None) -> SlotView:
    slot, prefix = holding.slot, None
    if holding.computed_depth >= PREFIX_SHOWN_STRIDES:
        prefix = holding.chain.key(PREFIX_SHOWN_STRIDES)
    if sequence is None:
        return SlotView(slot, SlotState.CACHED, None, None, holding.length, prefix)
    state = SlotState.PREFILLING if sequence.is_prefilling else SlotState.GENERATING
    place = (sequence.request.id, sequence.index, sequence.computed)
    return SlotView(slot, state, *place, prefix, sequence.known_count)


def _waiting(admission: Admission, settings: SchedulerSettings, now: float) -> list[Waiting]:
    """Looks a prefix up only where the next admission would. Others would be read at every look,
    and once more for each that runs meanwhile (invariant 11)."""
    rows: list[Waiting] = []
    registry, held_back = admission.registry, admission.held_back
    everyone = WaitReason.BUDGET if held_back is None else None
    # Background sequences give their slots to live ones.
    running_count = len(registry.running) - len(background_of(registry.running))
    if running_count >= settings.max_num_seqs:
        everyone = WaitReason.SLOT
    background = _background_reason(admission, settings) or everyone
    gathered = WaitReason.GROUP
    if settings.strategy is Strategy.CONTINUOUS:
        gathered = WaitReason.WINDOW
    looked_at, is_blocked = 0, False
    memory_full: set[str | None] = set()
    for sequence in islice(registry.queue.ordered(now), WAITING_SHOWN_MAX):
        tenant = sequence.request.limited_tenant
        reason = background if sequence.is_background else everyone
        reason = reason or _reason_held(registry, sequence, gathered, held_back or frozenset())
        if reason is None and tenant in memory_full:
            reason = WaitReason.SHARE
        if reason is None and (is_blocked or looked_at >= LOOKAHEAD):
            reason = WaitReason.TURN
        if reason is None:
            looked_at += 1
            reason = _reason_of_memory(admission, sequence)
            is_blocked = reason is WaitReason.MEMORY
            if reason is WaitReason.SHARE:
                memory_full.add(tenant)
        rows.append(_make_waiting(sequence, reason))
    paused = [each for each in registry.paused if each.state is SequenceState.WAITING]
    room = WAITING_SHOWN_MAX - len(rows)
    return rows + [_make_waiting(sequence, WaitReason.PAUSED) for sequence in paused[:room]]


def _make_waiting(sequence: Sequence, reason: WaitReason) -> Waiting:
    return Waiting(
        sequence.request.id,
        sequence.index,
        sequence.accepted_at,
        sequence.known_count,
        sequence.priority,
        sequence.has_started,
        reason,
    )


def _background_reason(admission: Admission, settings: SchedulerSettings) -> WaitReason | None:
    """The reason for all background sequences, if there is one."""
    if admission.is_live_awaited:
        return WaitReason.LIVE
    if len(admission.registry.running) >= settings.max_num_seqs:
        return WaitReason.SLOT
    return WaitReason.BUDGET if admission.is_tick_full else None


def _reason_held(
    registry: Registry, sequence: Sequence, gathered: WaitReason, held_back: Set[str]
) -> WaitReason | None:
    """Why admission passes it over without a look at its prefix; None if it does not."""
    if not registry.gate.may_join(sequence):
        return gathered
    tenant = sequence.request.limited_tenant
    if tenant in registry.queue.shares.full:
        return WaitReason.SHARE
    if tenant in held_back:
        return WaitReason.BUDGET
    if sequence.is_suspect and any(
        # A live suspect takes the place of one in the background.
        other.is_suspect and (sequence.is_background or not other.is_background)
        for other in registry.running
    ):
        return WaitReason.TRIAL
    return None


def _reason_of_memory(admission: Admission, sequence: Sequence) -> WaitReason:
    registry = admission.registry
    match = registry.memory.find(sequence)
    if match.is_awaited:
        return WaitReason.PREFIX
    if sequence.request.limited_tenant is not None and not registry.memory_shares.has_room(
        sequence, match, registry.running
    ):
        return WaitReason.SHARE
    return WaitReason.NEXT if admission.has_memory(sequence, match) else WaitReason.MEMORY
