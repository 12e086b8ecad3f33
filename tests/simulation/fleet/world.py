"""`FleetWorld`: how large a simulated fleet is, what it is asked, and what goes wrong in it.

A world of the command line is large and mostly calm. One that is drawn from a seed is small, and
everything that can go wrong in a fleet goes wrong in it often.
"""

import random
from dataclasses import dataclass

from jitney.core.backend import Traits
from jitney.core.scheduler_settings import SchedulerSettings

MODEL_LEN_MAX = 1024
SMALL_REQUESTS = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetWorld:
    """Everything that a run depends on. Times are virtual seconds; shares are of all requests."""

    seed: int
    replica_count: int = 100
    request_count: int = 1_000_000
    loss_count: int = 10
    """Replicas that die by themselves, one after the other."""
    cut_count: int = 10
    """Connections between a replica and an ingress that break while both live on."""
    poison_count: int = 3
    """Requests that kill whoever computes them."""
    router: str = "expected"
    are_prompts_shared: bool = True
    """Whether prompts begin with one of a few system prompts, and conversations come back."""
    ingress_count: int = 2
    per_s: float = 16.0
    """Requests in a second, for each replica."""
    slot_count: int = 24
    spare_slots: int = 24
    kv_tokens: int = 16_384
    queue_max: int = 64
    pass_s: float = 0.05
    """Seconds of a forward pass, for each sequence in it, and for each prompt token in it."""
    sequence_s: float = 0.0003
    prompt_token_s: float = 0.0001
    host_s: float = 0.005
    """Seconds between two passes. What a pass made is told at their end."""
    cancel_share: float = 0.01
    deadline_share: float = 0.01
    several_share: float = 0.02
    """Requests that want two completions."""
    scope_count: int = 4
    report_s: float = 1.0
    report_late_s: float = 0.9
    """A report is so late at most."""
    report_lost_share: float = 0.02
    silence_share: float = 0.2
    """Losses that are known by silence only."""
    replaced_s: tuple[float, float] = (5.0, 20.0)
    """How long it takes until a lost replica has a successor."""

    @property
    def span_s(self) -> float:
        """How long requests arrive, about."""
        return self.request_count / (self.per_s * self.replica_count)

    @property
    def settings(self) -> SchedulerSettings:
        """Of the scheduler of every replica."""
        return SchedulerSettings(
            model_len_max=MODEL_LEN_MAX,
            max_num_seqs=self.slot_count,
            max_num_queued_reqs=self.queue_max,
            max_num_batched_tokens=512,
            prefill_chunk=256,
        )

    @property
    def traits(self) -> Traits:
        """Of the backend of every replica."""
        return Traits(
            name="simulated",
            slots_max=self.slot_count + self.spare_slots,
            kv_tokens=self.kv_tokens,
            model_len_max=MODEL_LEN_MAX,
            block_tokens=16,
            can_save=False,
            batch_invariant=True,
        )


def draw_world(seed: int, request_count: int = SMALL_REQUESTS) -> FleetWorld:
    """A small world in which much goes wrong."""
    draw = random.Random(f"{seed} world")
    replica_count = draw.randint(2, 6)
    slot_count = draw.choice((1, 2, 4, 8))
    pass_s = draw.choice((0.01, 0.03, 0.1))
    # From an idle fleet to one that has too much to do.
    per_s = draw.choice((0.3, 0.7, 1.0, 1.5)) * slot_count / (16 * pass_s)
    return FleetWorld(
        seed=seed,
        replica_count=replica_count,
        request_count=request_count,
        loss_count=draw.randint(1, 6),
        cut_count=draw.randint(0, 5),
        poison_count=draw.randint(0, 3),
        are_prompts_shared=draw.random() < 0.8,
        ingress_count=draw.choice((1, 2, 2, 3)),
        per_s=per_s,
        slot_count=slot_count,
        spare_slots=draw.choice((0, 2, 8)),
        kv_tokens=draw.choice((MODEL_LEN_MAX + 16, 4096)),
        queue_max=draw.choice((2, 8, 64)),
        pass_s=pass_s,
        prompt_token_s=draw.choice((0.0, 0.0001, 0.001)),
        host_s=draw.choice((0.1, 0.5)) * pass_s,
        cancel_share=draw.choice((0.0, 0.05, 0.2)),
        deadline_share=draw.choice((0.0, 0.05, 0.2)),
        several_share=draw.choice((0.0, 0.1)) if slot_count > 1 else 0.0,
        scope_count=draw.choice((1, 3)),
        report_late_s=draw.choice((0.0, 0.9)),
        report_lost_share=draw.choice((0.0, 0.1, 0.5)),
        silence_share=draw.choice((0.0, 0.2, 1.0)),
        replaced_s=draw.choice(((0.1, 1.0), (2.0, 20.0))),
    )
