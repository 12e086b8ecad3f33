"""Invariant 3: the ledger equals a recount and the backend's own; at rest all is free or cached."""

from collections import Counter
from collections.abc import Callable

from jitney.core.snapshot import WAITING_SHOWN_MAX, SlotState, Snapshot
from tests.simulation.seen import Detailed, Executed, Happened, Planned, Rested, Seen, Violation

NAME = "ledger"


class LedgerChecker:
    """Has the scheduler recount itself after every call, and compares with the backend."""

    def __init__(self, recount: Callable[[], None]) -> None:
        self._recount = recount
        self._planned: Snapshot | None = None

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Planned():
                self._check()
                self._planned = seen.snapshot
            case Happened():
                self._check()
            case Executed():
                assert self._planned is not None, "executed without a plan"
                ours, theirs = self._planned.kv_used, seen.backend.used_tokens
                if ours != theirs:
                    raise Violation(
                        NAME,
                        f"after batch {seen.batch.number} the ledger counts {ours} tokens in use "
                        f"and the backend {theirs}",
                    )
            case Detailed():
                self._look(seen)
            case Rested(was_stopped=False):
                self._rest(seen.snapshot)

    def _check(self) -> None:
        try:
            self._recount()
        except AssertionError as error:
            raise Violation(NAME, f"a recount disagrees: {error}") from error

    def _look(self, seen: Detailed) -> None:
        shown = sum(stretch.end - stretch.start for stretch in seen.detail.stretches)
        if shown != seen.snapshot.kv_used:
            raise Violation(NAME, f"{shown} tokens are shown, {seen.snapshot.kv_used} in use")
        waiting = len(seen.detail.waiting)
        known = seen.snapshot.waiting_count + seen.snapshot.paused_count
        if waiting != min(known, WAITING_SHOWN_MAX):
            raise Violation(NAME, f"{waiting} are shown to wait")
        states = Counter(view.state for view in seen.detail.slots)
        counted = {
            SlotState.PREFILLING: seen.snapshot.prefilling_count,
            SlotState.GENERATING: seen.snapshot.running_count - seen.snapshot.prefilling_count,
            SlotState.CACHED: seen.snapshot.cached_count,
        }
        if states != Counter(counted):
            raise Violation(NAME, f"slots are shown as {states} and counted as {counted}")

    def _rest(self, snapshot: Snapshot) -> None:
        if snapshot.unfinished_count:
            raise Violation(NAME, f"at rest {snapshot.running_count} sequences run")
        if snapshot.kv_used != snapshot.kv_cached:
            raise Violation(
                NAME, f"at rest {snapshot.kv_used} tokens are in use, {snapshot.kv_cached} cached"
            )
