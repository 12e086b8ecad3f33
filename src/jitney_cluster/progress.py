"""What one request has made so far, over all engines that ran it: `Progress`. Sans-IO, one thread.

A request that loses its engine goes on elsewhere from its prompt and the tokens that reached its
caller. Tokens that were made and not delivered are made again: draws depend on (seed, position), so
they are the same (invariant 4). Nothing is delivered twice, and nothing is left out (invariant 5).

A request may itself be what kills its engines. As in the scheduler, only losses count while it ran
and after which it made no token. Nor does a loss count while it computed only what was computed
before, on an engine that lived:

    one loss      it goes on elsewhere
    SUSPECT       it is a suspect: of those at an ingress one runs at a time, until its first token
    LOSSES_MAX    it ends with an error
"""

from dataclasses import dataclass, field, replace
from enum import Enum

from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Delta, Timing, Usage

SUSPECT_LOSSES = 2
LOSSES_MAX = 3
MOVES_MAX = 64
"""However innocent a request is, it is not moved without end."""


class Verdict(Enum):
    """What happens to a request that lost its engine."""

    GO_ON = "go on"
    ALONE = "go on when no other suspect runs"
    FAIL = "fail"


@dataclass(slots=True)
class _Made:
    """One completion so far. Times are seconds since the request arrived."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Kept for a whole answer only. In a stream they go out with the deltas."""
    first_token_s: float | None = None
    token_s: float | None = None
    """When its last token came."""
    last: Delta | None = None
    """The delta with its finish reason."""
    over_s: float | None = None
    told: Completion | None = None
    """What the engine that ended it said of it; None if that engine was lost before the others
    of this request ended."""


class Progress:
    """One request from its first engine to its end. Times are seconds since it arrived."""

    def __init__(self, request: Request, sent_s: float, *, keeps_logprobs: bool) -> None:
        self.request = request
        self._sent_s = sent_s
        self._keeps_logprobs = keeps_logprobs
        self._made = [_Made() for _ in range(request.params.n)]
        self._queue_s: float | None = None
        self._prompt_logprobs: tuple[TokenLogprob, ...] | None = None
        self._gaps_s: list[float] = []
        """Times between tokens that were not asked for yet."""
        self.move_count = 0
        self._losses = 0
        """Engines lost in a row while it ran, without a token in between."""
        self._has_run = False
        self.is_catching_up = False
        """Whether its engine still computes tokens that it had before, and more than the last."""

    @property
    def has_begun(self) -> bool:
        """Whether anything was made."""
        return any(each.tokens or each.last for each in self._made)

    @property
    def is_complete(self) -> bool:
        """Whether each of its completions has ended."""
        return all(each.last is not None for each in self._made)

    @property
    def token_count(self) -> int:
        """Tokens of all its completions so far."""
        return sum(len(each.tokens) for each in self._made)

    @property
    def has_gaps(self) -> bool:
        """Whether there are times between tokens that `take_gaps` has not given."""
        return bool(self._gaps_s)

    def start(self, at_s: float) -> None:
        """It runs on its engine."""
        self._has_run, self.is_catching_up = True, False
        if self._queue_s is None:
            self._queue_s = at_s - self._sent_s

    def take(self, delta: Delta, at_s: float) -> None:
        """Note a delta that goes to the caller."""
        made = self._made[delta.index]
        assert made.last is None, f"a delta after the end of completion {delta.index}"
        self._has_run, self.is_catching_up = True, False
        made.texts.append(delta.text)
        made.tokens.extend(delta.tokens)
        if self._keeps_logprobs:
            made.logprobs.extend(delta.logprobs)
        if delta.tokens:
            self._losses = 0
            made.first_token_s = at_s if made.first_token_s is None else made.first_token_s
        self._add_gaps(made, delta, at_s)
        if delta.finish_reason is not None:
            made.last, made.over_s = delta, at_s

    def take_gaps(self) -> tuple[float, ...]:
        """Seconds between its tokens, each once: those since the last call."""
        gaps_s, self._gaps_s = tuple(self._gaps_s), []
        return gaps_s

    def _add_gaps(self, made: _Made, delta: Delta, at_s: float) -> None:
        count = len(delta.tokens) + _has_end_token(delta)
        if not count:
            return
        if made.token_s is not None:
            # Tokens whose text was held back come together. Each took its part of the time.
            self._gaps_s += [(at_s - made.token_s) / count] * count
        made.token_s = at_s

    def lose(self) -> Verdict:
        """Its engine is gone."""
        self.move_count += 1
        self._losses += self._has_run and not self.is_catching_up
        self._has_run = False
        if self._losses >= LOSSES_MAX or self.move_count > MOVES_MAX:
            return Verdict.FAIL
        return Verdict.ALONE if self._losses >= SUSPECT_LOSSES else Verdict.GO_ON

    def resumed(self, left_s: float | None) -> Request:
        """The request for the next engine, with so much time left until its end."""
        request = self.request
        if left_s != request.request_timeout_s:
            request = replace(request, request_timeout_s=left_s)
        if not self.has_begun:
            return request
        # It has waited for its first slot already: only the time until its end counts.
        return replace(
            request,
            queue_timeout_s=None,
            resumed=tuple(None if each.last else tuple(each.tokens) for each in self._made),
        )

    def end(self, answer: Answer) -> None:
        """Note the answer of an engine, with the completions that ended there."""
        self._prompt_logprobs = answer.prompt_logprobs
        for completion in answer.completions:
            self._made[completion.index].told = completion

    def answer(self, at_s: float) -> Answer:
        """The whole answer."""
        return Answer(
            request=self.request,
            completions=tuple(
                self._completion(index, made, at_s) for index, made in enumerate(self._made)
            ),
            total_s=at_s,
            prompt_logprobs=self._prompt_logprobs,
        )

    def _completion(self, index: int, made: _Made, at_s: float) -> Completion:
        told, last = made.told, made.last
        logprobs = None
        if self._keeps_logprobs and self.request.params.logprobs is not None:
            logprobs = tuple(made.logprobs)
        return Completion(
            index=index,
            text="".join(made.texts),
            tokens=tuple(made.tokens),
            logprobs=logprobs,
            cumulative_logprob=None if logprobs is None else sum(each.logprob for each in logprobs),
            finish_reason=_finish_reason(made),
            stop_reason=None if last is None else last.stop_reason,
            usage=told.usage if told is not None else self._usage(made),
            timing=Timing(
                sent_s=self._sent_s,
                queue_s=self._queue_s,
                first_token_s=made.first_token_s,
                total_s=at_s if made.over_s is None else made.over_s,
            ),
            preempted_count=0 if told is None else told.preempted_count,
            message=None if told is None else told.message,
        )

    def _usage(self, made: _Made) -> Usage:
        """The usage of a completion whose engine was lost before it told it."""
        has_end = made.last is not None and _has_end_token(made.last)
        return Usage(
            prompt_count=len(self.request.prompt),
            completion_count=len(made.tokens) + has_end,
            cached_count=0,
        )


def _has_end_token(delta: Delta) -> bool:
    """Whether a token ended it: that one counts, and is not among the tokens. A stop string is no
    token."""
    return delta.finish_reason is FinishReason.STOP and not isinstance(delta.stop_reason, str)


def _finish_reason(made: _Made) -> FinishReason:
    if made.told is not None:
        return made.told.finish_reason
    reason = None if made.last is None else made.last.finish_reason
    return FinishReason.CANCELLED if reason is None else reason
