"""One request on its way over the cluster: `ClusterRequest`. No I/O; the event loop of the fleet.

It knows what its caller has got so far, over all engines that ran it, and how its present attempt
stands. A request that loses its engine goes on elsewhere from its prompt and the tokens that
reached its caller. Tokens that were made and not delivered are made again: draws depend on (seed,
position), so they are the same (invariant 4). Nothing is delivered twice, and nothing is left out
(invariant 5).

A request may itself be what kills its engines. As in the scheduler, a loss counts only if the
request ran on that engine and got no token since the loss before. A loss does not count either
while the engine only repeats what another engine has computed before (`is_catching_up`).

    one loss      it goes on elsewhere
    SUSPECT       it is a suspect: of those at an ingress one runs at a time, until its first token
    LOSSES_MAX    it ends with an error
"""

import asyncio
import math
from dataclasses import astuple, dataclass, field, replace
from enum import Enum

from jitney.core.batch import TokenLogprob
from jitney.core.events import FinishReason
from jitney.core.request import Request, Share
from jitney.core.scheduler_settings import SchedulerSettings
from jitney.engine.answer import Answer, Completion, Delta, Timing, Usage
from jitney.engine.collector import READ_TOO_SLOWLY
from jitney.engine.mailbox import Mailbox
from jitney.errors import DeadlineExceeded, QueueFull
from jitney_cluster.replica_messages import OrderEnded
from jitney_cluster.routing import Head, head_of

SUSPECT_LOSSES = 2
LOSSES_MAX = 3
MOVES_MAX = 64
"""However innocent a request is, it is not moved without end."""

PLACE_S_MAX = 120.0
"""How long a request waits for a replica that takes it, at the beginning and after a loss."""


class Verdict(Enum):
    """What happens to a request that lost its engine."""

    GO_ON = "go on"
    ALONE = "go on when no other suspect runs"
    FAIL = "fail"


@dataclass(slots=True)
class _PartialCompletion:
    """One completion so far. Times are seconds since the request arrived."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """For a whole answer only. In a stream they go out with the deltas."""
    first_token_s: float | None = None
    last_token_s: float | None = None
    last: Delta | None = None
    """The delta with its finish reason."""
    end_s: float | None = None
    result: Completion | None = None
    """From the engine that ended it; None if that engine was lost before the others of this request
    ended."""


@dataclass(slots=True, eq=False)
class ClusterRequest:
    """A request of this ingress, from its arrival to its end. Times are those of the fleet."""

    request: Request
    mailbox: Mailbox
    settings: SchedulerSettings
    arrived_at: float
    sent_at: float
    stores_logprobs: bool = False
    head: Head = field(init=False)
    """The beginning of what its next replica has to compute."""
    task: "asyncio.Task[None]" = field(init=False)

    attempt: int = 0
    number: int = 0
    """That of the order of this attempt."""
    replica: str | None = None
    """The replica of this attempt; None before that one has sent a message."""
    has_token: bool = False
    """Whether a token of this attempt has come."""
    end: "asyncio.Future[OrderEnded | None]" = field(init=False)
    """The end of this attempt: the last message of its replica, or None if that one is lost."""

    home: str = ""
    """The replica that accepted it last."""
    was_lost: bool = False
    """Whether that one was lost since."""
    unplaced_at: float | None = None
    """Since when no replica has it."""
    full: dict[str, QueueFull] = field(default_factory=dict)
    """Replicas that had no room for it, since it last ran."""
    is_accepted: bool = False
    is_started: bool = False
    is_suspect: bool = False
    """Whether it lost so many replicas that it runs only while no other such one does."""
    is_catching_up: bool = False
    """Whether its engine still computes tokens that it had before, and more than the last."""
    was_read_too_slowly: bool = False
    progress_due_at: float = 0.0
    """When observers get its number of tokens again."""
    move_count: int = 0
    gaps_s: list[float] = field(default_factory=list)
    """Times between tokens that observers have not got yet."""
    _completions: list[_PartialCompletion] = field(init=False)
    _prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    _queue_s: float | None = None
    _losses: int = 0
    """Engines lost in a row while it ran, without a token in between."""
    _has_run: bool = False

    def __post_init__(self) -> None:
        self._completions = [_PartialCompletion() for _ in range(self.request.params.n)]

    @property
    def has_begun(self) -> bool:
        """Whether its caller has got anything."""
        return any(each.tokens or each.last for each in self._completions)

    @property
    def is_complete(self) -> bool:
        """Whether each of its completions has ended."""
        return all(each.last is not None for each in self._completions)

    @property
    def token_count(self) -> int:
        """Tokens of all its completions so far."""
        return sum(len(each.tokens) for each in self._completions)

    def left_s(self, now: float) -> float | None:
        """Seconds until its deadline, if it or the server has one. Raises DeadlineExceeded."""
        limit_s = self.request.request_timeout_s or self.settings.request_timeout_s
        return self._left_s(now, limit_s, "The request passed its deadline.")

    def wait_left_s(self, now: float) -> float | None:
        """Seconds that it may still wait for its first slot, if there is a limit and it waits.

        Raises DeadlineExceeded.
        """
        limit_s = self.request.queue_timeout_s
        if limit_s is None:
            limit_s = self.settings.queue_timeout_s
        if limit_s is None or self.is_started:
            return None
        message = f"The request did not run within {limit_s:g} s, its limit for waiting; raise the "
        return self._left_s(now, limit_s, message + "limit, or try again later.")

    def _left_s(self, now: float, limit_s: float | None, message: str) -> float | None:
        left_s = None if limit_s is None else limit_s - (now - self.sent_at)
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded(message)
        return left_s

    def next_request(self, number: int, replica_count: int, now: float) -> Request:
        """Begin the next attempt, with the order of this number; what its engine is to run.

        Clocks of two machines differ, so it says how much time is left. Time at the ingress counts:
        while it waited for a replica, was refused by some, or lost one. Raises DeadlineExceeded.
        """
        left_s, wait_s = self.left_s(now), self.wait_left_s(now)
        self.attempt += 1
        self.number, self.replica, self.has_token = number, None, False
        waited_s = now - self.arrived_at if self.is_accepted else None
        request = replace(
            self.request,
            request_timeout_s=left_s,
            waited_s=waited_s,
            share=_share_of_one(self.request.share, replica_count),
        )
        if self.has_begun:
            # It has waited for its first slot already: only the time until its end counts.
            resumed = (None if each.last else tuple(each.tokens) for each in self._completions)
            return replace(request, queue_timeout_s=None, resumed=tuple(resumed))
        if wait_s is not None:
            # The replica counts from where the request was accepted first.
            return replace(request, queue_timeout_s=wait_s + (waited_s or 0.0))
        return replace(request, queue_timeout_s=math.inf) if self.is_started else request

    def update_head(self) -> None:
        """Compute its head: from its prompt and the tokens of its first completion that goes on."""
        tokens = next((each.tokens for each in self._completions if each.last is None), [])
        self.head = head_of((*self.request.prompt, *tokens), self.request.scope)

    def start(self, now: float) -> None:
        """It runs on its engine."""
        self._has_run, self.is_catching_up, self.is_started = True, False, True
        if self._queue_s is None:
            self._queue_s = now - self.sent_at

    def take(self, delta: Delta, now: float) -> None:
        """Note a delta that goes to the caller."""
        completion = self._completions[delta.index]
        assert completion.last is None, f"a delta after the end of completion {delta.index}"
        at_s = now - self.arrived_at
        self._has_run, self.is_catching_up = True, False
        completion.texts.append(delta.text)
        completion.tokens.extend(delta.tokens)
        if self.stores_logprobs:
            completion.logprobs.extend(delta.logprobs)
        if delta.tokens:
            self._losses = 0
            if completion.first_token_s is None:
                completion.first_token_s = at_s
        self._add_gaps(completion, delta, at_s)
        if delta.finish_reason is not None:
            completion.last, completion.end_s = delta, at_s

    def lose(self, now: float) -> Verdict:
        """Its engine is gone."""
        self.move_count += 1
        self._losses += self._has_run and not self.is_catching_up
        self._has_run = False
        self.was_lost |= self.replica is not None
        self.full.clear()
        self.lose_place(now)
        verdict = Verdict.ALONE if self._losses >= SUSPECT_LOSSES else Verdict.GO_ON
        if self._losses >= LOSSES_MAX or self.move_count > MOVES_MAX:
            verdict = Verdict.FAIL
        self.is_suspect = verdict is Verdict.ALONE
        self.update_head()
        return verdict

    def lose_place(self, now: float) -> float:
        """No replica has it; since when."""
        if self.unplaced_at is None:
            self.unplaced_at = now
        return self.unplaced_at

    def check_place(self, now: float) -> None:
        """Raise QueueFull if no replica has taken it for too long."""
        if now - self.lose_place(now) >= PLACE_S_MAX:
            reason = next((f" ({each})" for each in self.full.values()), "")
            raise QueueFull(
                f"No replica took the request within {PLACE_S_MAX:g} s{reason}; try again later.",
                PLACE_S_MAX,
            )

    def find_full(self, error: QueueFull) -> None:
        """Its replica has no room: another one is to be tried. Raises when all were tried."""
        # A replica gets it a second time only where no other is left.
        was_tried = self.replica in self.full
        self.full[self.replica or ""] = error
        if self.replica is None or was_tried:
            retry_s = min(each.retry_after_s for each in self.full.values())
            raise QueueFull(
                f"Every replica has as many requests as it takes; try again in {retry_s:.1f} s.",
                retry_s,
            )

    def take_results(self, ended: OrderEnded) -> None:
        """Note what an engine says of the completions that ended there."""
        self._prompt_logprobs = ended.prompt_logprobs
        for completion in ended.completions:
            self._completions[completion.index].result = completion

    def answer(self, now: float) -> Answer:
        """The whole answer."""
        at_s = now - self.arrived_at
        return Answer(
            request=self.request,
            completions=tuple(
                self._completion(index, each, at_s) for index, each in enumerate(self._completions)
            ),
            total_s=at_s,
            prompt_logprobs=self._prompt_logprobs,
        )

    def _add_gaps(self, completion: _PartialCompletion, delta: Delta, at_s: float) -> None:
        count = len(delta.tokens) + _has_end_token(delta)
        if not count:
            return
        if completion.last_token_s is not None:
            # Tokens whose text was held back come together. Each took its part of the time.
            self.gaps_s += [(at_s - completion.last_token_s) / count] * count
        completion.last_token_s = at_s

    def _completion(self, index: int, partial: _PartialCompletion, at_s: float) -> Completion:
        last, result = partial.last, partial.result
        logprobs = None
        if self.stores_logprobs and self.request.params.logprobs is not None:
            logprobs = tuple(partial.logprobs)
        message = None if result is None else result.message
        ended = result or last
        reason = (ended and ended.finish_reason) or FinishReason.CANCELLED
        return Completion(
            index=index,
            text="".join(partial.texts),
            tokens=tuple(partial.tokens),
            logprobs=logprobs,
            cumulative_logprob=None if logprobs is None else sum(each.logprob for each in logprobs),
            finish_reason=reason,
            stop_reason=None if last is None else last.stop_reason,
            usage=self._usage(partial) if result is None else result.usage,
            timing=Timing(
                sent_s=self.sent_at - self.arrived_at,
                queue_s=self._queue_s,
                first_token_s=partial.first_token_s,
                total_s=at_s if partial.end_s is None else partial.end_s,
            ),
            preempted_count=0 if result is None else result.preempted_count,
            message=READ_TOO_SLOWLY if self.was_read_too_slowly else message,
        )

    def _usage(self, partial: _PartialCompletion) -> Usage:
        """The usage of a completion whose engine was lost before it sent it."""
        has_end = partial.last is not None and _has_end_token(partial.last)
        return Usage(
            prompt_count=len(self.request.prompt),
            completion_count=len(partial.tokens) + has_end,
            cached_count=0,
        )


def _has_end_token(delta: Delta) -> bool:
    """Whether a token ended it: that one counts, and is not among the tokens. A stop string is no
    token."""
    return delta.finish_reason is FinishReason.STOP and not isinstance(delta.stop_reason, str)


def _share_of_one(share: Share | None, replica_count: int) -> Share | None:
    """The part of a key's share that it has on one replica."""
    if share is None:
        return None
    return Share(*(max(1, round(each / replica_count)) for each in astuple(share)))
