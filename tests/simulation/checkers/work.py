"""Invariant 11: what the engine thread does for a request is in proportion to its tokens.

However many wait, and for however many ticks: work that is done for each of them in each tick must
not walk along their prompts. Counted in tokens read, not in time.
"""

from tests.simulation.seen import Happened, Planned, Seen, Submitted, TokenEvent, Violation

NAME = "work"

READS_MAX = 3
"""Times that each token may be read while prefixes are looked for: once for its key, once when it
is compared, and once more when it is the first with its prefix and others wait."""


class WorkChecker:
    """Compares what was read with what there was to read."""

    def __init__(self) -> None:
        self._token_count = 0

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                self._token_count += seen.request.params.n * len(seen.request.prompt)
            case Happened():
                self._token_count += sum(isinstance(each, TokenEvent) for each in seen.events)
            case Planned():
                self._compare(seen.snapshot.counters["prefix_tokens_read"])

    def _compare(self, read_count: int) -> None:
        if read_count > READS_MAX * self._token_count:
            raise Violation(
                NAME, f"{read_count} tokens were read for the prefixes of {self._token_count}"
            )
