"""Schedulers, live and background requests, and one tick of them, for the tests of the core."""

from dataclasses import replace
from typing import Any

from jitney.core.backend import Traits
from jitney.core.batch import Outcome, Sample
from jitney.core.events import Event, PreemptEvent, PreemptReason
from jitney.core.params import SamplingParams
from jitney.core.request import Request, RequestId
from jitney.core.scheduler import PlannedBatch, Scheduler
from jitney.core.scheduler_settings import Candidate, Policy, SchedulerSettings
from jitney.core.sequence import Sequence

TRAITS = Traits(name="none", slots_max=8, kv_tokens=800, model_len_max=100, batch_invariant=True)


class LastFirst:
    """A user's policy: the last name first."""

    def rank(self, candidate: Candidate) -> float:
        return -ord(candidate.request_id[0])


POLICIES = [*Policy, LastFirst()]


# Any: of every setting's type
def scheduler(max_num_seqs: int = 8, traits: Traits = TRAITS, **others: Any) -> Scheduler:
    """One of sequences as long as the model and its memory allow."""
    model_len_max = min(traits.model_len_max, traits.kv_tokens)
    settings = SchedulerSettings(model_len_max=model_len_max, max_num_seqs=max_num_seqs, **others)
    return Scheduler(settings, traits, (9,))


# Any: of every field's type
def live(
    name: str, prompt: int | tuple[int, ...] = 3, *, max_tokens: int = 20, n: int = 1, **others: Any
) -> Request:
    """A request with this prompt, or with one of so many tokens that are its own."""
    tokens = (ord(name[0]),) * prompt if isinstance(prompt, int) else prompt
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, n=n)
    return Request(id=RequestId(name), prompt=tokens, params=params, seed=0, **others)


def behind(name: str, prompt: int | tuple[int, ...] = 3, **others: Any) -> Request:
    return live(name, prompt, is_background=True, **others)


def submit(one: Scheduler, *requests: Request) -> None:
    for request in requests:
        one.submit(request, 0.0)


def planned(one: Scheduler, now: float = 0.0) -> PlannedBatch:
    """The next batch, which must be there."""
    batch = one.plan(now)
    assert batch is not None
    return batch


def applied(
    one: Scheduler, batch: PlannedBatch, now: float = 0.0, seconds: float = 0.01
) -> list[Event]:
    entries = batch.batch.entries
    samples = tuple(Sample(5 if entry.wants_token else None) for entry in entries)
    events = one.apply(batch, Outcome.of(batch.batch.number, samples, seconds), now)
    one.check()
    return events


def turn(one: Scheduler, now: float = 0.0) -> tuple[dict[str, int], list[Event]]:
    """One tick: the span of each member of its batch, and what was reported."""
    batch = one.plan(now)
    if batch is None:
        return {}, []
    spans = [entry.length for entry in batch.batch.entries]
    return dict(zip(names(batch), spans, strict=True)), applied(one, batch, now)


def names(batch: PlannedBatch) -> list[str]:
    return [str(each.request.id) for each in batch.sequences]


def members(one: Scheduler, now: float = 0.0) -> set[str]:
    return set(turn(one, now)[0])


def runs(one: Scheduler) -> set[str]:
    return {str(each.request.id) for each in one._registry.running}


def losses(events: list[Event]) -> list[tuple[str, PreemptReason, str]]:
    return [
        (str(each.request_id), each.reason, str(each.by))
        for each in events
        if isinstance(each, PreemptEvent)
    ]


def made_background(made: Sequence) -> Sequence:
    made.request = replace(made.request, is_background=True)
    made.is_background = True
    return made
