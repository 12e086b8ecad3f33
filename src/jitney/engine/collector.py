"""Turns the events of one request into deltas, stop verdicts and, at the end, its answer.

Called by the tick, on the engine thread. Knows text, not memory. While a completion runs, its text
is made here only where a stop string may end it, or logprobs go out with it; else by who reads it
(`jitney.engine.track`). The whole text of its answer is made here when it ends.
Keeps invariant 5: the joined deltas of a completion are its text. They have no half characters, no
part of a stop string (unless the caller wants it), and nothing after the end. When a stop string is
found, `push_token` returns a verdict, and the tick passes it on to the scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from jitney.core import limits
from jitney.core.backend import Vocabulary
from jitney.core.batch import FaultKind, TokenLogprob
from jitney.core.events import (
    FinishEvent,
    FinishReason,
    PreemptEvent,
    PromptEvent,
    StartEvent,
)
from jitney.core.params import SamplingParams
from jitney.core.request import Request
from jitney.engine.answer import Answer, Completion, Ending, Timing, Usage
from jitney.engine.mailbox import Mailbox
from jitney.engine.track import Track
from jitney.errors import BackendFailed, DeadlineExceeded, InvalidRequest, JitneyError, QueueFull
from jitney.text.detokenizer import Detokenizer
from jitney.text.stop import StopMatcher

READ_TOO_SLOWLY = (
    "The answer was not read as fast as it was made, so it was cut short; "
    "read it faster, or ask for fewer logprobs or completions."
)

UNREAD_STEP = 64
"""Tokens between two looks at how much of a completion is unread."""

_NORMAL = (FinishReason.STOP, FinishReason.LENGTH)
"""How a completion ends if it was not cancelled and did not fail."""


@dataclass(slots=True)
class _Watched:
    """The text of a completion that is made here, token by token: it has stop strings, which end
    it, or logprobs, which go out with it."""

    detokenizer: Detokenizer
    matcher: StopMatcher | None
    """None without stop strings."""
    sent_count: int
    """Tokens that were sent with a delta. The others wait for text that is held back."""
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """If the mailbox is bounded, sent ones are dropped: they take the most memory. Those of resumed
    tokens are not here."""
    matched: str | None = None


class Collector:
    """Follows one request from acceptance to its ending."""

    def __init__(
        self,
        request: Request,
        vocabulary: Vocabulary,
        mailbox: Mailbox,
        sent_at: float,
        arrived_at: float | None = None,
    ) -> None:
        params = request.params
        self.request = request
        self.sent_at = sent_at
        self.arrived_at = sent_at if arrived_at is None else min(arrived_at, sent_at)
        self.mailbox = mailbox
        skips_special = params.skip_special_tokens
        self._tracks = {
            index: Track(index, tokens, vocabulary, skips_special)
            for index, tokens in request.resumed_tokens.items()
        }
        self._watched: dict[int, _Watched] = {}
        """By index, if text is needed here; else empty."""
        self._prompt_logprobs: dict[int, TokenLogprob] = {}
        self._is_read_too_slowly = False
        if params.stop_table is None and params.logprobs is None:
            mailbox.follow(tuple(self._tracks.values()))
            return
        for index, tokens in request.resumed_tokens.items():
            self._watched[index] = _watched(params, tokens, vocabulary)

    @property
    def is_done(self) -> bool:
        """Whether every completion has its finish event."""
        return all(track.completion is not None for track in self._tracks.values())

    @property
    def is_answered(self) -> bool:
        """Whether every completion ended normally: none was cancelled, and none failed."""
        ends = (track.completion for track in self._tracks.values())
        return all(end is not None and end.finish_reason in _NORMAL for end in ends)

    @property
    def is_started(self) -> bool:
        """Whether any of its sequences ever had a slot."""
        return any(track.started_at is not None for track in self._tracks.values())

    def push(self, event: StartEvent | PromptEvent | PreemptEvent | FinishEvent) -> None:
        """Take one event that is no token. May put a delta into the mailbox."""
        track = self._tracks[event.index]
        assert track.completion is None, f"an event after the end: {event}"
        match event:
            case FinishEvent():
                self._finish(track, event)
            case StartEvent():
                if track.started_at is None:
                    track.started_at = event.at
            case PromptEvent():
                for offset, logprob in enumerate(event.logprobs):
                    self._prompt_logprobs[event.start + offset] = logprob
            case PreemptEvent():
                pass
            case _:
                assert_never(event)

    def push_token(
        self, index: int, token: int, at: float, logprob: TokenLogprob | None = None
    ) -> FinishReason | None:
        """Take one token of a completion. Its reader may be woken.

        Returns STOP if the completion has a stop string: the scheduler has to finish its sequence.
        Returns CANCELLED if the deltas are not read: the scheduler has to cancel the request.
        """
        track, mailbox = self._tracks[index], self.mailbox
        assert track.completion is None, f"a token after the end: {index}"
        if track.first_token_at is None:
            track.first_token_at = at
        if self._watched:
            verdict = self._watch(track, token, at, logprob)
            if verdict is not None:
                return verdict
            is_large = mailbox.is_large
        else:
            assert logprob is None, "nobody asked for it"
            track.add(token, at)
            if mailbox.is_awaited:
                mailbox.wake()
            # Counting is quick, but not for every token.
            is_large = mailbox.is_bounded and not len(track.tokens) % UNREAD_STEP
        if is_large and mailbox.is_read_too_slowly(at):
            self._is_read_too_slowly = True
            return FinishReason.CANCELLED
        return None

    def is_finished(self, index: int) -> bool:
        """Whether the completion has its finish event."""
        return self._tracks[index].completion is not None

    def ending(self, now: float) -> Ending:
        """The ending of a request whose completions are all finished, given at `now`."""
        assert self.is_done, self.request.id
        completions = tuple(
            track.completion for track in self._tracks.values() if track.completion is not None
        )
        logprobs = None
        if self.request.params.prompt_logprobs is not None:
            logprobs = tuple(each for _, each in sorted(self._prompt_logprobs.items()))
        answer = Answer(
            request=self.request,
            completions=completions,
            total_s=now - self.arrived_at,
            prompt_logprobs=logprobs,
        )
        return Ending(answer, error_of(completions))

    @property
    def token_count(self) -> int:
        """Tokens of all its completions so far."""
        return sum(len(track.tokens) for track in self._tracks.values())

    def tails(self, characters_max: int) -> tuple[str, ...]:
        """The last characters of each completion so far."""
        if self._watched:
            # Without what is held back.
            return tuple(_tail(each.texts, characters_max) for each in self._watched.values())
        return tuple(track.tail(characters_max) for track in self._tracks.values())

    @property
    def stopped_indices(self) -> list[int]:
        """Completions whose resumed tokens have a stop string: only their end was lost."""
        watched = self._watched.items()
        return [index for index, each in watched if each.matched is not None]

    def _watch(
        self, track: Track, token: int, at: float, logprob: TokenLogprob | None
    ) -> FinishReason | None:
        """Take one token whose text is needed here; STOP if it has a stop string now."""
        watched = self._watched[track.index]
        if watched.matched is not None:
            # Sampled before the scheduler got the verdict. The completion is already over.
            return None
        track.tokens.append(token)
        if logprob is not None:
            watched.logprobs.append(logprob)
        text = _without_stop(watched, watched.detokenizer.push(token))
        if text:
            self._send(track, watched, text, at)
        return FinishReason.STOP if watched.matched is not None else None

    def _send(
        self, track: Track, watched: _Watched, text: str, at: float, end: FinishEvent | None = None
    ) -> None:
        watched.texts.append(text)
        mailbox, tokens = self.mailbox, track.tokens
        if not mailbox.streams:
            return
        sent_count, watched.sent_count = watched.sent_count, len(tokens)
        logprobs: Sequence[TokenLogprob] = ()
        if watched.logprobs:
            if mailbox.is_bounded:
                logprobs, watched.logprobs = watched.logprobs, []
            else:
                logprobs = watched.logprobs[sent_count - track.resumed_count :]
        ending = None if end is None else (end.reason, end.stop_reason)
        mailbox.add(track.index, text, tokens[sent_count:], logprobs, at, ending)

    def _finish(self, track: Track, event: FinishEvent) -> None:
        watched = self._watched.get(track.index)
        if watched is None:
            track.end = event.reason, event.stop_reason
            self.mailbox.wake()
            text = track.text()
        else:
            rest = "" if watched.matched is not None else _flush(watched)
            if watched.matched is not None and event.reason in _NORMAL:
                event = replace(event, reason=FinishReason.STOP, stop_reason=watched.matched)
            self._send(track, watched, rest, event.at, event)
            text = "".join(watched.texts)
        track.completion = self._complete(track, event, text)

    def _complete(self, track: Track, event: FinishEvent, text: str) -> Completion:
        has_logprobs = self.request.params.logprobs is not None and not self.mailbox.is_bounded
        logprobs = self._watched[track.index].logprobs if has_logprobs else None
        is_cut = self._is_read_too_slowly and event.reason is FinishReason.CANCELLED
        return Completion(
            index=track.index,
            text=text,
            tokens=tuple(track.tokens),
            logprobs=None if logprobs is None else tuple(logprobs),
            cumulative_logprob=(
                None if logprobs is None else sum(each.logprob for each in logprobs)
            ),
            finish_reason=event.reason,
            stop_reason=event.stop_reason,
            usage=Usage(
                prompt_count=len(self.request.prompt),
                completion_count=event.completion_count,
                cached_count=event.cached_count,
            ),
            timing=Timing(
                sent_s=self.sent_at - self.arrived_at,
                queue_s=_since(self.sent_at, track.started_at),
                first_token_s=_since(self.arrived_at, track.first_token_at),
                total_s=event.at - self.arrived_at,
            ),
            preempted_count=event.preempted_count,
            message=READ_TOO_SLOWLY if is_cut else event.message,
            fault_kind=event.fault_kind,
        )


def _watched(params: SamplingParams, resumed: Sequence[int], vocabulary: Vocabulary) -> _Watched:
    """After tokens that were made elsewhere. Their text was sent there, as far as it goes out with
    these tokens."""
    detokenizer, matcher = Detokenizer(vocabulary, params.skip_special_tokens), None
    if params.stop_table is not None:
        matcher = StopMatcher(params.stop_table, params.include_stop_str_in_output)
    watched = _Watched(detokenizer, matcher, len(resumed))
    for token in resumed:
        watched.texts.append(_without_stop(watched, detokenizer.push(token)))
    return watched


def _without_stop(watched: _Watched, text: str) -> str:
    """The text without what may become a stop string."""
    if watched.matcher is None:
        return text
    found = watched.matcher.push(text)
    watched.matched = watched.matched or found.matched
    return found.text


def _flush(watched: _Watched) -> str:
    """The text that was held back, because nothing can follow it now."""
    text = watched.detokenizer.flush()
    if watched.matcher is None:
        return text
    found = watched.matcher.push(text)
    watched.matched = found.matched
    return found.text if found.matched is not None else found.text + watched.matcher.flush()


def _tail(texts: list[str], characters_max: int) -> str:
    pieces: list[str] = []
    room = characters_max
    for text in reversed(texts):
        if room <= 0:
            break
        pieces.append(text[-room:])
        room -= len(text)
    return "".join(reversed(pieces))


def _since(start: float, moment: float | None) -> float | None:
    return None if moment is None else moment - start


def error_of(completions: tuple[Completion, ...]) -> JitneyError | None:
    """The error for the caller. A failure counts before a deadline."""
    if all(each.finish_reason in _NORMAL for each in completions):
        return None
    by_reason = {each.finish_reason: each for each in reversed(completions)}
    failed = by_reason.get(FinishReason.FAILED)
    if failed is not None:
        message = failed.message or "The backend failed while it ran this request."
        if failed.fault_kind is FaultKind.REQUEST:
            return InvalidRequest(message, "structured_outputs")
        if failed.fault_kind is FaultKind.PROMPT:
            return InvalidRequest(message)
        if failed.fault_kind is FaultKind.CAPACITY:
            return QueueFull(message, limits.CONSTRAINT_COMPILE_S_MAX)
        return BackendFailed(message)
    late = by_reason.get(FinishReason.DEADLINE)
    if late is not None:
        return DeadlineExceeded(
            late.message or "The request's time limit passed before it ended; raise the limit."
        )
    return None
