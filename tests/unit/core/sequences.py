"""Makes sequences for the tests of the core."""

from jitney.core.params import SamplingParams
from jitney.core.request import Priority, Request, RequestId
from jitney.core.sequence import Sequence, make_sequences

EOS = 9


def sequence(
    name: str = "a",
    prompt: tuple[int, ...] = (1, 2, 3),
    *,
    accepted_at: float = 0.0,
    tokens_max: int = 16,
    priority: Priority = Priority.NORMAL,
    tenant: str = "",
) -> Sequence:
    """A waiting sequence; its order is that of its name, so that ties are decided."""
    request = Request(
        id=RequestId(name),
        prompt=prompt,
        params=SamplingParams(temperature=0.0, max_tokens=tokens_max),
        seed=1,
        priority=priority,
        tenant=tenant,
    )
    made = make_sequences(request, frozenset({EOS}), 100_000, accepted_at)[0]
    made.order = sum(ord(letter) for letter in name)
    return made


def running(made: Sequence, slot: int, *, computed: int, generated: int = 0) -> Sequence:
    """The same sequence as if it ran, with so many tokens made since it was admitted."""
    made.slot = slot
    made.history.admitted_known = made.known_count
    made.tokens += [5] * generated
    made.computed = made.planned = computed
    return made
