"""`Sequence`: one stream of tokens that grows. Mutable; only parts of the scheduler change it.

Each sequence has *known* tokens and *computed* tokens. A tick lets computed catch up with known. A
sequence that is one token behind is generating; one that is further behind is prefilling. Both are
computed in the same way. Only the split of the budget, admission and sending ahead tell them apart.
Where a backend rounds a lone token otherwise (`Traits.decodes_differ`), generated tokens are
computed again one per tick, which takes as long as it took to make them.

    known      tokens[:known_count]           prompt and completion so far
    computed   positions whose keys and values are in the slot: confirmed by an outcome, or reused
    planned    computed, plus the positions in batches in flight
    pending    tokens that batches in flight will sample (0 while nothing is in flight)
"""

from dataclasses import dataclass, field, fields, replace
from enum import StrEnum

from jitney.core import limits
from jitney.core.batch import NO_TOKEN, Decodes, Entry, Sampling
from jitney.core.params import PARAMETERS
from jitney.core.prefix import Chain
from jitney.core.request import Priority, Request, SequenceName
from jitney.errors import ContextLengthExceeded, InvalidRequest

_CONVERTED = {"seed", "top_k", "logit_bias"}
_PASSED_ON = {each.name for each in fields(Sampling)} & PARAMETERS.keys() - _CONVERTED
"""Sampling parameters that a backend gets unchanged."""


class SequenceState(StrEnum):
    """Where a sequence is.

    WAITING -> RUNNING -> FINISHED
       ^          |
       `----------'  preempted, displaced, paused, or the backend lost its memory
    and WAITING -> FINISHED if it is cancelled, late, or failed too often, or was complete when it
    was accepted.
    """

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_MOVES = {
    (SequenceState.WAITING, SequenceState.RUNNING),
    (SequenceState.RUNNING, SequenceState.WAITING),
    (SequenceState.RUNNING, SequenceState.FINISHED),
    (SequenceState.WAITING, SequenceState.FINISHED),
}


@dataclass(slots=True)
class History:
    """What happened to a sequence so far."""

    started_at: float | None = None
    """When it first got a slot."""
    admitted_known: int = 0
    """Known tokens when it last got a slot."""
    cached_count: int = 0
    """Prompt tokens that were in the cache when it started."""
    reused_count: int = 0
    """Tokens that it found in memory when it last got a slot."""
    preempted_count: int = 0
    paused_s: float = 0.0
    scored_count: int = 1
    """Prompt positions whose logprobs were reported, counting position 0, which has none."""
    failed_count: int = 0
    """Failures of the backend with this sequence. It is 0 again when the sequence has got past
    `failed_known`."""
    failed_known: int = 0
    """Known tokens at the last of them."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One completion of a request, from submission to its end."""

    request: Request
    index: int
    sampling: Sampling
    known_max: int
    accepted_at: float
    name: SequenceName = field(init=False)
    priority: Priority = field(init=False)
    is_background: bool = field(init=False)
    """Whether its request may wait: all live ones go first."""
    tokens: list[int] = field(init=False)
    prompt_count: int = field(init=False)
    order: int = 0
    """The number of its submission, among all sequences."""
    is_elder: bool = False
    """Whether it ran when it was older than `overtake_s`. Known only under `priority`."""
    state: SequenceState = SequenceState.WAITING
    slot: int | None = None
    computed: int = 0
    planned: int = 0
    pending: int = 0
    chain: Chain | None = None
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.name = (self.request.id, self.index)
        self.priority = self.request.priority
        self.is_background = self.request.is_background
        self.prompt_count = len(self.request.prompt)
        self.tokens = [*self.request.prompt, *self.request.resumed_tokens[self.index]]

    @property
    def known_count(self) -> int:
        """Tokens known: prompt and completion."""
        return len(self.tokens)

    @property
    def completion_count(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_count

    @property
    def wanted_count(self) -> int:
        """Positions that could be planned now, also that of a token in flight."""
        pending = self.pending
        if pending and len(self.tokens) + pending >= self.known_max:
            return 0  # its last allowed token is in flight: nothing follows it
        return len(self.tokens) + pending - self.planned

    @property
    def is_prefilling(self) -> bool:
        """Whether more than its last token is to be computed."""
        return len(self.tokens) - self.computed > 1

    @property
    def is_in_flight(self) -> bool:
        """Whether it is in a batch that has not returned."""
        return self.planned != self.computed or self.pending > 0

    @property
    def has_started(self) -> bool:
        """Whether it ever had a slot."""
        return self.history.started_at is not None

    @property
    def is_suspect(self) -> bool:
        """Whether it may be what makes the backend fail. Suspects run one at a time."""
        return self.history.failed_count >= limits.SUSPECT_FAILURES

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether logprobs of its prompt are still to be reported."""
        is_scored = self.sampling.prompt_logprobs is not None
        return is_scored and self.history.scored_count < self.prompt_count

    @property
    def scores_prompt(self) -> bool:
        """Whether its next position is scored: of a prompt that is computed again, too."""
        return self.sampling.prompt_logprobs is not None and self.planned < self.prompt_count

    @property
    def has_progressed(self) -> bool:
        """Whether it made a token since it was admitted."""
        return len(self.tokens) > self.history.admitted_known

    @property
    def work_left(self) -> int:
        """Tokens to compute until its limit. The policy `sjf` sorts by it.

        While it waits, that is all of them: what it had in memory may be gone when it runs again.
        """
        assert self.known_max >= self.computed, (self.known_max, self.computed)
        return self.known_max - self.computed

    def move(self, state: SequenceState) -> None:
        """Change the state. Only moves of the diagram are allowed."""
        assert (self.state, state) in _MOVES, (self.state, state)
        self.state = state

    def plan(self, span: int) -> bool:
        """Its next positions are part of a batch; whether it gets a token from them."""
        assert span >= 1, span
        self.planned += span
        wants_token = self.planned == len(self.tokens) + self.pending
        self.pending += wants_token
        return wants_token

    def entry(self, span: int, wants_token: bool) -> Entry:
        """The entry for so many positions that were planned last."""
        assert self.slot is not None, "only a sequence with a slot computes"
        start, end = self.planned - span, self.planned
        return Entry(self.slot, start, tuple(self.tokens[start:end]), wants_token)

    def compute(self, start: int, length: int) -> int:
        """These positions are computed. Returns how many of them are of its prompt."""
        assert start == self.computed, "spans are computed in order"
        self.computed = end = start + length
        assert end <= self.planned, "only what was planned is computed"
        history = self.history
        if history.failed_count and end > history.failed_known:
            history.failed_count = 0  # it passed the position where the backend failed
        # A span that is computed again may reach from the prompt to the completion.
        return min(length, self.prompt_count - start) if start < self.prompt_count else 0

    def forget_computed(self) -> None:
        """Its memory is gone: all known tokens have to be computed again."""
        self.slot = None
        self.computed = 0
        self.planned = 0
        self.pending = 0


def decodes_of(sequences: list[Sequence]) -> Decodes:
    """The columns for the last position of each that was planned. Its token may be in flight."""
    slots = [each.slot for each in sequences if each.slot is not None]
    starts = [each.planned - 1 for each in sequences]
    assert len(slots) == len(starts), "only a sequence with a slot computes"
    tokens = [
        each.tokens[-1] if len(each.tokens) == each.planned else NO_TOKEN for each in sequences
    ]
    return Decodes(tuple(slots), tuple(starts), tuple(tokens))


def check_prompt_length(prompt_count: int, model_len_max: int) -> None:
    """Raise InvalidRequest for an empty prompt, and ContextLengthExceeded for one that is too
    long."""
    if prompt_count == 0:
        raise InvalidRequest("The prompt is empty; give at least one token.", "prompt")
    if prompt_count >= model_len_max:
        raise ContextLengthExceeded(
            f"The prompt has {prompt_count} tokens, the context holds {model_len_max}, and the "
            "completion needs at least one; shorten the prompt; whoever loads the model can raise "
            "max_model_len.",
            "prompt",
        )


def make_sequences(
    request: Request, eos_tokens: frozenset[int], model_len_max: int, now: float
) -> list[Sequence]:
    """The sequences of a request, one for each completion. Raises if it can never fit.

    Of a resumed request, those that have not ended, with the tokens that they have: more than fit,
    where the engine that made them had more room.
    """
    prompt_count = len(request.prompt)
    check_prompt_length(prompt_count, model_len_max)
    params = request.params
    known_max = model_len_max
    if params.max_tokens is not None:
        known_max = min(model_len_max, prompt_count + params.max_tokens)
    assert known_max > prompt_count, "there is room for a token"
    # They share everything except the seed: a bias or a schema may be large.
    sampling = _make_sampling(request, eos_tokens)
    accepted_at = now - (request.waited_s or 0.0)
    return [
        Sequence(
            request,
            index,
            replace(sampling, seed=_seed(request, index)) if index else sampling,
            known_max,
            accepted_at,
        )
        for index in request.resumed_tokens
    ]


def _seed(request: Request, index: int) -> int:
    """Each completion has its own seed. The first has the seed of the request."""
    return (request.seed + index * 0x9E3779B97F4A7C15 + 2**63) % 2**64 - 2**63


def _make_sampling(request: Request, eos_tokens: frozenset[int]) -> Sampling:
    """The sampling of the first completion of a request."""
    params = request.params
    ends = set(params.stop_token_ids or ())
    if not params.ignore_eos:
        ends |= eos_tokens
    return Sampling(
        seed=_seed(request, 0),
        prompt_count=len(request.prompt),
        top_k=max(0, params.top_k),
        logit_bias=tuple(sorted((params.logit_bias or {}).items())),
        end_tokens=tuple(sorted(ends)),
        constraint=params.constraint,
        **{name: getattr(params, name) for name in _PASSED_ON},
    )
