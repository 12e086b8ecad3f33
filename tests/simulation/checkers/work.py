"""Invariant 11: what the engine thread does for a request is in proportion to its tokens.

However many wait, and for however many ticks: work that is done for each of them in each tick must
not walk along their prompts. Counted in tokens read, not in time.
"""

from jitney.core.events import PreemptEvent
from jitney.core.scheduler_settings import SchedulerSettings
from tests.simulation.seen import Happened, Planned, Seen, Submitted, Violation

NAME = "work"

READS_MAX = 8
"""Times that each token may be read while prefixes are looked for: once for its key, and once for
each of a few holdings that it is compared with. In 800 worlds it was four at the most."""


class WorkChecker:
    """Compares what was read with what there was to read."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._token_count = 0

    def see(self, seen: Seen) -> None:
        """Take in what happened."""
        match seen:
            case Submitted(error=None):
                params = seen.request.params
                known_max = len(seen.request.prompt) + (params.max_tokens or 0)
                self._token_count += params.n * min(known_max, self._settings.model_len_max)
            case Happened(method="fail"):
                # Whatever ran looks for its prefix once more.
                self._token_count += self._settings.max_num_seqs * self._settings.model_len_max
            case Happened():
                again = sum(isinstance(event, PreemptEvent) for event in seen.events)
                self._token_count += again * self._settings.model_len_max
            case Planned():
                self._compare(seen.snapshot.counters["prefix_tokens_read"])

    def _compare(self, read_count: int) -> None:
        if read_count > READS_MAX * self._token_count:
            raise Violation(
                NAME, f"{read_count} tokens were read for the prefixes of {self._token_count}"
            )
