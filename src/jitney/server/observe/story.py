"""What happened to one request: `Story`, built from the engine's records. Ids and numbers only.

The engine thread changes it under the recorder's lock, until the request ends.
"""

from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from jitney.core.events import PreemptReason
from jitney.core.request import Priority, RequestId
from jitney.records import (
    Member,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestMoved,
    RequestProgressed,
    RequestStarted,
    TickRecord,
    ending_of,
)
from jitney.server.error_object import refusal_of

SPANS_MAX = 256
LOSSES_MAX = 64
"""Kept for one request; later ones are only counted."""

READING_S_MIN = 0.005
"""Reading and tokenising that is shorter than this counts as waiting."""


class PrefillSpan(NamedTuple):
    """Prompt or recomputed tokens [start, start + length) that one tick computed."""

    tick: int
    at: float
    start: int
    length: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Loss:
    """A sequence lost its slot: to `by`, or by a failure of the backend if `reason` is None."""

    at: float
    index: int
    reason: PreemptReason | None
    by: RequestId | None = None
    by_priority: Priority | None = None

    @property
    def word(self) -> str:
        """Why, in a word or two."""
        return "backend lost" if self.reason is None else self.reason.value


@dataclass(frozen=True, slots=True)
class Gap:
    """The longest time between two tokens, and what else was in the tick that ended it."""

    seconds: float
    prompts_beside: int
    prompt_tokens_beside: int
    batch_size: int
    lost_slot: bool


@dataclass(slots=True)
class CompletionProgress:
    """How far one completion is; only for the engine thread."""

    reached: int = 0
    """Tokens computed at least once."""
    token_count: int = 0
    token_at: float | None = None
    """When it got its last token."""
    lost_slot: bool = False
    """Whether it lost its slot since then."""


@dataclass(slots=True)
class Story:
    """One request. Times are seconds on the engine's clock."""

    accepted: RequestAccepted
    waiting_before: int
    """Requests that waited when it came."""
    running_before: int
    started: RequestStarted | None = None
    phases: list[tuple[float, str]] = field(init=False)
    """When each phase began: reading, queued, prefill, generating, preempted, paused or moved."""
    spans: list[PrefillSpan] = field(default_factory=list)
    prefill_ticks: int = 0
    prefill_tokens: int = 0
    """Computed prompt tokens, and in how many ticks; without recomputed ones."""
    recomputed_tokens: int = 0
    losses: list[Loss] = field(default_factory=list)
    resumed_at: list[float] = field(default_factory=list)
    """When it first ran again after each loss."""
    preempted_count: int = 0
    paused_count: int = 0
    """How often its caller paused it while it ran."""
    failure_count: int = 0
    """How often the backend was lost while it ran."""
    moves: list[RequestMoved] = field(default_factory=list)
    move_count: int = 0
    """How often it went on with another replica."""
    first_token_at: float | None = None
    last_token_at: float | None = None
    completion_tokens: int = 0
    gap: Gap | None = None
    slot: int | None = None
    ended_at: float | None = None
    ending: str | None = None
    """stop, length, abort, deadline or error, once it has ended."""
    message: str | None = None
    """The error message that the caller got, and no more: callers see it."""
    progress: dict[int, CompletionProgress] = field(default_factory=dict)
    """By index of the completion."""

    def __post_init__(self) -> None:
        arrived_at, sent_at = self.accepted.arrived_at, self.accepted.sent_at
        self.phases = [(arrived_at, "queued")]
        if sent_at - arrived_at >= READING_S_MIN:
            self.phases = [(arrived_at, "reading"), (sent_at, "queued")]

    @property
    def id(self) -> RequestId:
        """The id of the request."""
        return self.accepted.request_id

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were in the cache when it started."""
        return 0 if self.started is None else self.started.prefix_cache_tokens

    @property
    def replica(self) -> str:
        """The replica that had it last; empty where there is one engine."""
        if self.moves:
            return self.moves[-1].to_replica
        return "" if self.started is None else self.started.replica

    def until(self, now: float) -> float:
        """When it ended, or now."""
        return now if self.ended_at is None else self.ended_at

    def copied(self) -> "Story":
        """A copy as it is now."""
        other = copy(self)
        for name in ("phases", "spans", "losses", "resumed_at", "moves", "progress"):
            setattr(other, name, copy(getattr(self, name)))
        return other

    def start(self, record: RequestStarted) -> None:
        """It got its first slot."""
        self.started = record
        self._enter("prefill", record.at)

    def goes_on(self, index: int) -> bool:
        """Whether a completion has tokens and generates: nothing but its next token is to come."""
        progress = self.progress[index]
        return (
            progress.token_at is not None
            and self.gap is not None
            and self.phases[-1][1] == "generating"
            and not progress.lost_slot
            and len(self.resumed_at) == len(self.losses)
        )

    def compute(self, member: Member, tick: TickRecord) -> None:
        """It was in the batch of a tick."""
        progress = self.progress.get(member.index)
        if progress is None:
            progress = self.progress[member.index] = CompletionProgress()
        self.slot = member.slot
        is_prefill = member.start < progress.reached or member.start < self.accepted.prompt_tokens
        if len(self.resumed_at) < len(self.losses) and self._is_of_last_loss(member):
            self.resumed_at.append(tick.at - tick.tick_ms / 1e3)
            self._enter("prefill" if is_prefill else "generating", self.resumed_at[-1])
        end = member.start + member.length
        if is_prefill:
            self._prefill(member, tick, progress.reached, end)
        if end > progress.reached:
            progress.reached = end

    def _prefill(self, member: Member, tick: TickRecord, reached: int, end: int) -> None:
        fresh = max(0, min(end, self.accepted.prompt_tokens) - max(member.start, reached))
        self.recomputed_tokens += max(0, min(end, reached) - member.start)
        self.prefill_ticks += fresh > 0
        self.prefill_tokens += fresh
        if len(self.spans) < SPANS_MAX:
            place, seconds = (member.start, member.length), tick.tick_ms / 1e3
            self.spans.append(PrefillSpan(tick.number, tick.at, *place, seconds))

    def lose(self, loss: Loss) -> None:
        """It lost a slot."""
        self.slot = None
        if loss.reason is None:
            self.failure_count += 1
        elif loss.reason is PreemptReason.PAUSED:
            self.paused_count += 1
        else:
            self.preempted_count += 1
        for index, progress in self.progress.items():
            if loss.reason is None or loss.index == index:
                progress.lost_slot = progress.token_at is not None
        if len(self.losses) < LOSSES_MAX and len(self.resumed_at) == len(self.losses):
            self.losses.append(loss)
            is_paused = loss.reason is PreemptReason.PAUSED
            self._enter("paused" if is_paused else "preempted", loss.at)

    def add_token(
        self, member: Member, tick: TickRecord, prompts_beside: tuple[int, int]
    ) -> float | None:
        """A tick made a token for it. Returns the seconds since that completion's last token.

        `prompts_beside` counts all prompts of the tick and their tokens, with its own.
        """
        progress = self.progress[member.index]
        last_at = progress.token_at
        self.completion_tokens += 1
        self.last_token_at = progress.token_at = tick.at
        progress.token_count += 1
        if self.first_token_at is None:
            self.first_token_at = tick.at
        if self.phases[-1][1] == "prefill" and self._is_of_last_loss(member):
            self._enter("generating", tick.at)
        if last_at is None:
            return None
        seconds = tick.at - last_at
        if self.gap is None or seconds > self.gap.seconds:
            count, tokens = prompts_beside
            if member.length > 1:
                count, tokens = count - 1, tokens - member.length
            lost_slot = progress.lost_slot
            self.gap = Gap(seconds, count, tokens, tick.batch_size, lost_slot)
        progress.lost_slot = False
        return seconds

    def advance(self, record: RequestProgressed) -> bool:
        """It has so many tokens, made elsewhere. Returns whether they are its first."""
        is_first = self.first_token_at is None
        if self.first_token_at is None:
            self.first_token_at = record.at
        self.completion_tokens, self.last_token_at = record.generated_tokens, record.at
        if self.phases[-1][1] != "generating":
            self._enter("generating", record.at)
        return is_first

    def move(self, record: RequestMoved) -> None:
        """It went on elsewhere. It counts as moved until its next token, or until it waits."""
        self.move_count += 1
        if len(self.moves) < LOSSES_MAX:
            self.moves.append(record)
            self._enter("moved", record.at - record.away_ms / 1e3)
            if self.started is None:
                self._enter("queued", record.at)

    def end(self, record: RequestDone | RequestFailed) -> None:
        """It ended."""
        if self.first_token_at is not None and not self.progress:
            # Of tokens that were made elsewhere the last ones are told with the end.
            self.completion_tokens, self.last_token_at = record.generated_tokens, record.at
        self.ended_at = record.at
        self.ending = ending_of(record)
        self.slot = None
        if isinstance(record, RequestFailed):
            self.message = refusal_of(record.error).message

    def _is_of_last_loss(self, member: Member) -> bool:
        """Whether the completion that lost its slot last runs here; true without a loss."""
        loss = self.losses[-1] if self.losses else None
        return loss is None or loss.reason is None or loss.index == member.index

    def _enter(self, phase: str, at: float) -> None:
        self.phases.append((max(at, self.phases[-1][0]), phase))


def figures(story: Story) -> dict[str, object]:
    """What a request is and what it took, for people."""
    accepted = story.accepted
    found: dict[str, object] = {
        "prompt_tokens": accepted.prompt_tokens,
        "cached_tokens": story.cached_tokens,
        "completion_tokens": story.completion_tokens,
        "recomputed_tokens": story.recomputed_tokens,
        "completions": accepted.completions,
        "priority": accepted.priority.name.lower(),
        "is_background": accepted.is_background,
        "ending": story.ending,
    }
    return {**found, "replica": story.replica} if story.replica else found


def move_fields(move: RequestMoved) -> dict[str, str | int]:
    """From where to where a request moved, why, and with how many tokens."""
    return {
        "from": move.from_replica,
        "to": move.to_replica,
        "tokens": move.generated_tokens,
        "reason": move.reason.value,
    }
