"""Invariant 12: what callers and settings ask beside running is kept.

A paused sequence computes nothing, and is no part of any batch that is planned. Without preemption
nobody is displaced, except from the background. Nobody is preempted in vain: the one that needed
the room has a slot after that plan, and if it ran before, it is in the batch. No prefix is evicted
in vain: where nobody got a slot, those who computed took more blocks than were free. Under the mix
`separate` a batch has prefills or decodes, each as many as may be.
"""

from jitney.core.backend import Traits
from jitney.core.batch import Batch, Entry
from jitney.core.events import PreemptEvent, PreemptReason
from jitney.core.request import RequestId
from jitney.core.scheduler_settings import Mix, SchedulerSettings
from jitney.core.snapshot import Snapshot
from tests.simulation.alone import Oracle
from tests.simulation.pauses import Pauses
from tests.simulation.seen import Happened, Name, Planned, Seen, Violation

NAME = "steering"

OTHERS_MAY_EVICT = ("kept_states", "displaced", "preempted_saved", "preempted_recomputed")


class SteeringChecker:
    """Looks at every batch, and at who was displaced."""

    def __init__(
        self, settings: SchedulerSettings, traits: Traits, oracle: Oracle, pauses: Pauses
    ) -> None:
        self._settings = settings
        self._oracle = oracle
        self._decodes_differ = traits.decodes_differ
        self._block = traits.block_tokens
        self._snapshot: Snapshot | None = None
        self._pauses = pauses
        self._running: set[Name] = set()
        self._served: dict[float, set[RequestId]] = {}
        """By the times of the last plans: the requests that ran and computed, or that began."""

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Planned(batch=None):
                self._evictions(seen, ())
                self._serve(seen, set())
            case Planned(batch=Batch() as batch):
                self._evictions(seen, batch.entries)
                self._serve(seen, {seen.owners[entry.slot] for entry in batch.entries})
                for entry in batch.entries:
                    name = seen.owners[entry.slot]
                    if self._pauses.is_paused(name):
                        raise Violation(NAME, f"{name} is paused and in {batch.number}")
                if self._settings.mix is Mix.SEPARATE:
                    self._kinds(seen, batch)
            case Happened():
                self._losses([each for each in seen.events if isinstance(each, PreemptEvent)])

    def _serve(self, seen: Planned, members: set[Name]) -> None:
        running = set(seen.owners.values())
        served = {request_id for request_id, _ in members | (running - self._running)}
        self._served.setdefault(seen.at, set()).update(served)
        self._running = running

    def _evictions(self, seen: Planned, entries: tuple[Entry, ...]) -> None:
        before, self._snapshot = self._snapshot, seen.snapshot
        if before is None or set(seen.owners.values()) - self._running:
            return
        counters, earlier = seen.snapshot.counters, before.counters
        # Others took a slot or a place as well.
        if any(counters[name] > earlier[name] for name in OTHERS_MAY_EVICT):
            return
        free = before.kv_tokens - before.kv_used
        ends = [-(-each.end // self._block) for each in entries]
        starts = [-(-each.start // self._block) for each in entries]
        taken = (sum(ends) - sum(starts)) * self._block
        if counters["evicted"] > earlier["evicted"] and taken <= free:
            raise Violation(
                NAME, f"a prefix was evicted though {free} tokens were free for {taken}"
            )

    def _losses(self, losses: list[PreemptEvent]) -> None:
        # One that began may have lost its slot in the same plan, for one that came before it.
        losers = {each.request_id for each in losses}
        for event in losses:
            name = (event.request_id, event.index)
            if event.reason is PreemptReason.PAUSED:
                continue
            if event.by not in self._served.get(event.at, losers) | losers:
                raise Violation(NAME, f"{name} lost its place for {event.by}, which has none")
            is_displaced = event.reason is PreemptReason.DISPLACED
            if self._settings.enable_preemption or not is_displaced:
                continue
            if not self._oracle.request(name).is_background:
                raise Violation(NAME, f"{name} was displaced")
        if losses:
            last = losses[-1].at
            self._served = {at: ids for at, ids in self._served.items() if at >= last}

    def _kinds(self, seen: Planned, batch: Batch) -> None:
        kinds = [self._is_decode(entry, seen.owners[entry.slot]) for entry in batch.entries]
        decode_count = sum(kinds)
        prefill_count = len(kinds) - decode_count
        if prefill_count and decode_count:
            raise Violation(NAME, f"batch {batch.number} has prefills and decodes")
        for count, most in (
            (prefill_count, self._settings.prefill_batch_size),
            (decode_count, self._settings.decode_batch_size),
        ):
            if most is not None and count > most:
                raise Violation(NAME, f"batch {batch.number} has {count} of a kind, not {most}")

    def _is_decode(self, entry: Entry, name: Name) -> bool:
        """Whether it computes the one token that is known and not computed, or one of those that
        were generated where they are computed again one by one."""
        if entry.length > 1 or entry.wants_token:
            return entry.length == 1
        prompt_count = len(self._oracle.request(name).prompt)
        return self._decodes_differ and entry.start >= prompt_count - 1
