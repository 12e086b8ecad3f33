"""Invariant 12: what callers and settings ask beside running is kept.

A paused sequence computes nothing, and is no part of any batch that is planned. Without preemption
nobody is displaced, except from the background. Under the mix `separate` a batch has prefills or
decodes, each as many as may be.
"""

from jitney.core.batch import Batch, Entry
from jitney.core.events import PreemptEvent, PreemptReason
from jitney.core.scheduler_settings import Mix, SchedulerSettings
from tests.simulation.alone import Oracle
from tests.simulation.pauses import Pauses
from tests.simulation.seen import Happened, Name, Planned, Seen, Violation

NAME = "steering"


class SteeringChecker:
    """Looks at every batch, and at who was displaced."""

    def __init__(
        self, settings: SchedulerSettings, oracle: Oracle, pauses: Pauses, *, decodes_differ: bool
    ) -> None:
        self._settings = settings
        self._oracle = oracle
        self._decodes_differ = decodes_differ
        self._pauses = pauses

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Planned(batch=Batch() as batch):
                for entry in batch.entries:
                    name = seen.owners[entry.slot]
                    if self._pauses.is_paused(name):
                        raise Violation(NAME, f"{name} is paused and in {batch.number}")
                if self._settings.mix is Mix.SEPARATE:
                    self._kinds(seen, batch)
            case Happened() if not self._settings.enable_preemption:
                for event in seen.events:
                    if isinstance(event, PreemptEvent) and event.reason is PreemptReason.DISPLACED:
                        self._displaced((event.request_id, event.index))

    def _displaced(self, name: Name) -> None:
        if not self._oracle.request(name).is_background:
            raise Violation(NAME, f"{name} was displaced")

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
