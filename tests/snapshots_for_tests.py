"""States of a scheduler for tests that need one and run none."""

from jitney.core.rules.cost import Fit
from jitney.core.snapshot import Snapshot

IDLE = Snapshot(
    running_count=0,
    prefilling_count=0,
    waiting_count=0,
    paused_count=0,
    waiting_tokens=0,
    deferred_count=0,
    cached_count=0,
    kv_tokens=100,
    kv_used=0,
    kv_cached=0,
    slot_count=4,
    fit=None,
    counters={},
)

FILLED = Snapshot(
    running_count=1,
    prefilling_count=2,
    waiting_count=3,
    paused_count=4,
    waiting_tokens=5,
    prefill_left=6,
    deferred_count=7,
    cached_count=8,
    kv_tokens=9,
    kv_used=10,
    kv_cached=11,
    slot_count=12,
    fit=Fit(0.1, None),
    prefill_token_s=0.01,
    counters={"kv_full": 2},
)
"""Another number for each level, so that a test sees which one it has."""
