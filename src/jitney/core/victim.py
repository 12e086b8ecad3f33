"""Who has to make room: pure choices among running sequences.

The most senior sequence is never a victim, so it always goes on and ends, and so in turn does
everyone after it: that is why preemption cannot go round in circles. A victim has made a token
since it was admitted, unless there is no other.
"""

from collections import Counter

from jitney.core.request import Priority
from jitney.core.sequence import Sequence


def seniority(sequence: Sequence, *, by_class: bool) -> tuple[int, float, int]:
    """The smaller, the more senior: class (where the policy knows classes), then age."""
    return (-sequence.priority if by_class else 0, sequence.arrived_at, sequence.order)


def choose_for_memory(candidates: list[Sequence], *, by_class: bool) -> Sequence | None:
    """The one to preempt when memory runs out: lowest class, has progressed, cheapest to resume.

    The candidates stand in order of seniority; the first of all running is not among them.
    """
    free = [sequence for sequence in candidates if not sequence.is_in_flight]
    if not free:
        return None
    return min(
        free,
        key=lambda sequence: (
            sequence.priority if by_class else 0,
            not sequence.has_progressed,
            sequence.computed,
            -sequence.arrived_at,
            -sequence.order,
        ),
    )


def choose_for_class(
    running: list[Sequence], newcomer: Sequence, now: float, overtake_s: float
) -> Sequence | None:
    """The one that a waiting sequence may displace: of a lower class, not aged.

    An aged sequence was admitted because it had waited long enough; it is not sent back. Classes
    are the callers' own claims, so nobody runs fewer than the one who displaces him, unless he
    claims to be of less weight than is usual.
    """
    counts = Counter(sequence.request.sharer for sequence in running)
    mine = newcomer.request.sharer
    lower = [
        sequence
        for sequence in running
        if sequence.priority < newcomer.priority
        and sequence.has_progressed
        and not sequence.is_in_flight
        and now - sequence.arrived_at <= overtake_s
        and (
            (theirs := sequence.request.sharer) == mine
            or theirs is None
            or sequence.priority < Priority.NORMAL
            or counts[theirs] - 1 >= counts[mine] + 1
        )
    ]
    if not lower:
        return None
    return min(lower, key=lambda s: (s.priority, s.computed, -s.arrived_at, -s.order))
