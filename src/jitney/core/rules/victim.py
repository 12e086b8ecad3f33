"""Chooses which running sequence has to make room. Pure functions.

When memory runs out, the most senior sequence is never a victim. So it always goes on and ends, and
then the next one does: preemption cannot go on for ever. A waiting sequence of a higher class may
displace even the most senior one, within the limits of `choose_for_class`. Who is displaced has
made a token since it was admitted. Who is preempted for memory has too, if there is a choice: under
`priority`, within the lowest class.
"""

from collections import Counter
from collections.abc import Iterator

from jitney.core.request import Priority
from jitney.core.rules.ranking import standing
from jitney.core.sequence import Sequence


def order_for_memory(candidates: list[Sequence], *, by_class: bool) -> list[Sequence]:
    """Whom to preempt when memory runs out, the next first: lowest class, has progressed, cheapest
    to resume.

    The candidates do not include the most senior of all running sequences, unless it is a
    background one and a live one needs its place.
    """
    return sorted(
        [sequence for sequence in candidates if not sequence.is_in_flight],
        key=lambda sequence: (
            standing(sequence) if by_class else 0,
            not sequence.has_progressed,
            sequence.computed,
            -sequence.accepted_at,
            -sequence.order,
        ),
    )


def choose_for_class(
    running: list[Sequence], newcomer: Sequence, now: float, overtake_s: float
) -> Iterator[Sequence]:
    """The sequences that a waiting one may displace: of a lower class, not older than `overtake_s`.

    The caller counts each as gone before it asks for the next. An older sequence was admitted
    because it had waited long enough, so it stays. Callers choose their class themselves. So a
    tenant cannot displace another tenant that would then run fewer sequences, unless the victim's
    class is below normal.
    """
    assert newcomer not in running, "only who waits displaces"
    counts = Counter(sequence.request.limited_tenant for sequence in running)
    mine = newcomer.request.limited_tenant
    lower = [
        sequence
        for sequence in running
        if sequence.priority < newcomer.priority
        and sequence.has_progressed
        and not sequence.is_in_flight
        and now - sequence.accepted_at <= overtake_s
    ]
    lower.sort(key=lambda s: (s.priority, s.computed, -s.accepted_at, -s.order))

    def may_leave(sequence: Sequence) -> bool:
        theirs = sequence.request.limited_tenant
        return (
            theirs == mine
            or theirs is None
            or sequence.priority < Priority.NORMAL
            or counts[theirs] - 1 >= counts[mine] + 1
        )

    while (victim := next(filter(may_leave, lower), None)) is not None:
        lower.remove(victim)
        counts[victim.request.limited_tenant] -= 1
        yield victim
