"""Invariant 12: what callers and settings ask beside running is kept.

A paused request computes nothing, and is no part of any batch that is planned. Without preemption
nobody is displaced. Under the mix `separate` a batch has prefills or decodes, each as many as may
be.
"""

from jitney.core.batch import Batch, Entry
from jitney.core.events import PreemptEvent, PreemptReason
from jitney.core.settings import Mix, SchedulerSettings
from tests.simulation.pauses import Pauses
from tests.simulation.seen import Happened, Planned, Seen, Violation

NAME = "steering"


class SteeringChecker:
    """Looks at every batch, and at who was displaced."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._pauses = Pauses()

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        self._pauses.see(seen)
        match seen:
            case Planned(batch=Batch() as batch):
                for entry in batch.entries:
                    request_id, _ = seen.owners[entry.slot]
                    if self._pauses.is_paused(request_id):
                        raise Violation(NAME, f"{request_id} is paused and in {batch.number}")
                if self._settings.mix is Mix.SEPARATE:
                    self._kinds(batch)
            case Happened() if not self._settings.displaces:
                for event in seen.events:
                    if isinstance(event, PreemptEvent) and event.reason is PreemptReason.DISPLACED:
                        raise Violation(NAME, f"{event.request_id} was displaced")

    def _kinds(self, batch: Batch) -> None:
        prefill_count = sum(entry.length > 1 for entry in batch.entries)
        decode_count = sum(map(_is_decode, batch.entries))
        if prefill_count and decode_count:
            raise Violation(NAME, f"batch {batch.number} has prefills and decodes")
        for count, most in (
            (prefill_count, self._settings.prefills_max),
            (decode_count, self._settings.decodes_max),
        ):
            if most is not None and count > most:
                raise Violation(NAME, f"batch {batch.number} has {count} of a kind, not {most}")


def _is_decode(entry: Entry) -> bool:
    """Whether it computes the one token that is known and not computed; a prefill has more."""
    return entry.length == 1 and entry.wants_token
