"""Named counters, most of them of rare events: metrics for operators, and proof that simulations
reached them.

Every name is declared here, so a test can demand that each was counted. Counters only grow
(invariant 7).

Tests: tests/simulation/test_seeds.py.
"""

NAMES = (
    "accepted",
    "admitted",
    "backend_failures",
    "cancelled_finished",
    "cancelled_generating",
    "cancelled_prefilling",
    "cancelled_waiting",
    "computed_completion_tokens",
    "computed_prompt_tokens",
    "copied_tokens",
    "copies_demoted",
    "copies_forgotten",
    "deadline_running",
    "deadline_waiting",
    "displaced",
    "ended_cancelled",
    "ended_failed",
    "ended_finished",
    "entry_faults",
    "evicted",
    "fetch_waits",
    "fetched_in_vain",
    "fetched_tokens",
    "fetches",
    "fetches_found",
    "fetches_missed",
    "groups_departed",
    "kept_states",
    "kv_full",
    "paused",
    "pauses_ended",
    "pauses_refused",
    "policy_faults",
    "prefix_tokens_read",
    "prefix_waits",
    "preempted_recomputed",
    "preempted_saved",
    "quarantined",
    "queue_full",
    "reprioritised",
    "restored",
    "resumed",
    "resumed_after_failure",
    "sat_out",
    "share_full",
    "share_waits",
    "stores",
    "struck_out",
    "taken_over",
    "waits_until_full",
    "window_waits",
    "windows_filled",
)


class Counters(dict[str, int]):
    """Counts by name. Counting under an undeclared name is a KeyError."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(NAMES, 0))
