"""Keeps the last ticks, the stories of the last requests and histograms, in bounded memory.

An observer: the engine thread calls `take`, any thread the other methods. The story of an ended
request never changes again, so readers get it as it is. Stories of live requests are copied.
"""

import threading
from bisect import bisect_left
from collections import Counter, deque
from copy import copy
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import assert_never

from jitney.core.request import RequestId, SequenceName
from jitney.records import (
    BackendLost,
    KvPressure,
    LifeRecord,
    Member,
    Members,
    Record,
    ReplicaGone,
    RequestAccepted,
    RequestDone,
    RequestFailed,
    RequestMoved,
    RequestPreempted,
    RequestProgressed,
    RequestRefused,
    RequestStarted,
    TickRecord,
)
from jitney.server.observe.histograms import HISTOGRAMS, token_bounds
from jitney.server.observe.story import CompletionProgress, Loss, Story

TICKS_MAX = 4096
REQUESTS_MAX = 1024
MEMBERS_MAX = 32_768
"""The most members of all kept ticks together: large batches leave room for fewer ticks."""

MOVES_MAX = 64
GAPS_MAX = 8192
"""How many times between tokens are kept for percentiles."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks. With a tenant, it sees names, texts and stories of that tenant's requests only."""

    tenant: str | None = None

    def may_read(self, story: Story | None) -> bool:
        """Whether the viewer may read this request; None is one that is forgotten."""
        return self.tenant is None or (story is not None and story.accepted.tenant == self.tenant)


EVERYONE = Viewer()
"""Without keys, everyone sees everything."""


class Histogram:
    """How many values lie up to each bound (the bound included), and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count one value, or several that are equal."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def copied(self) -> "Histogram":
        """A copy as it is now."""
        other = copy(self)
        other.counts = list(self.counts)
        return other


class Histograms(dict[str, Histogram]):
    """The histograms of ticks and requests by their names in the table; times in seconds."""

    def __init__(self, model_len_max: int) -> None:
        lengths = token_bounds(model_len_max)
        for name, (_, bounds) in HISTOGRAMS.items():
            self[name] = Histogram(bounds or lengths)
        self.prefill_s = 0.0
        self.generation_s = 0.0
        """From the first slot to the first token, and from that to the last: of all requests."""
        self.tokens_longest = 0
        """The longest sequence seen, in tokens."""

    def copied(self) -> "Histograms":
        """A copy as it is now. Called under the recorder's lock, so it is cheap."""
        other = copy(self)
        other.update({name: each.copied() for name, each in self.items()})
        return other

    def add_tick(self, record: TickRecord) -> None:
        """A tick ended."""
        self["tick_seconds"].add(record.tick_ms / 1e3)
        self["forward_seconds"].add(record.forward_ms / 1e3)
        self["tick_tokens"].add(record.prefill_tokens + record.decode_tokens)
        self.tokens_longest = max(self.tokens_longest, max(record.members.starts, default=-1) + 1)
        for member in record.members.others:
            self.tokens_longest = max(self.tokens_longest, member.start + member.length)

    def add_started(self, record: RequestStarted, story: Story) -> None:
        """A request got its first slot."""
        if not story.accepted.is_background:
            self["queue_seconds"].add(record.waited_ms / 1e3)
        self["request_prompt_tokens"].add(record.prompt_tokens)
        computed = record.prompt_tokens - record.prefix_cache_tokens
        self["vllm:request_prefill_kv_computed_tokens"].add(computed)

    def add_ended(self, record: RequestDone | RequestFailed, story: Story) -> None:
        """A request ended. Background requests have no latencies here."""
        is_live = not story.accepted.is_background
        if is_live:
            self["request_seconds"].add(record.duration_ms / 1e3)
        self["request_completion_tokens"].add(record.generated_tokens)
        self["vllm:request_params_n"].add(story.accepted.completions)
        if story.accepted.max_tokens is not None:
            self["vllm:request_params_max_tokens"].add(story.accepted.max_tokens)
        # Of completions that were made elsewhere only the sum is known.
        mean = record.generated_tokens // story.accepted.completions
        longest = max((each.token_count for each in story.progress.values()), default=mean)
        self["vllm:request_max_num_generation_tokens"].add(longest)
        started, first_at, last_at = story.started, story.first_token_at, story.last_token_at
        if started is None or first_at is None or last_at is None:
            return
        self.prefill_s += first_at - started.at
        self.generation_s += last_at - first_at
        if not is_live:
            return
        self["prefill_seconds"].add(first_at - started.at)
        self["generation_seconds"].add(last_at - first_at)
        self["vllm:request_inference_time_seconds"].add(last_at - started.at)
        if longest > 1:
            mean_s = (last_at - first_at) / (longest - 1)
            self["vllm:request_time_per_output_token_seconds"].add(mean_s)


class Recorder:
    """Records one engine, from its first request on."""

    def __init__(
        self, model_len_max: int, ticks_max: int = TICKS_MAX, requests_max: int = REQUESTS_MAX
    ) -> None:
        assert ticks_max >= 1, ticks_max
        assert requests_max >= 1, requests_max
        self._lock = threading.Lock()
        self._ticks: deque[TickRecord] = deque(maxlen=ticks_max)
        self._member_count = 0
        self._live: dict[RequestId, Story] = {}
        self._unstarted = Counter[bool]()
        """Live requests (False) and background ones (True) that have not started."""
        self._ended: dict[RequestId, Story] = {}
        self._requests_max = requests_max
        self._moves: deque[RequestMoved] = deque(maxlen=MOVES_MAX)
        self._gaps: deque[float] = deque(maxlen=GAPS_MAX)
        self._histograms = Histograms(model_len_max)
        self._going: dict[SequenceName, tuple[Story, CompletionProgress]] = {}
        """The completions of which each token tells no more than that they go on."""

    def take(self, record: Record) -> None:
        """Engine thread: record what happened."""
        with self._lock:
            match record:
                case TickRecord():
                    self._keep(record)
                    self._take_tick(record)
                case RequestAccepted():
                    self._take_accepted(record)
                case BackendLost():
                    self._take_lost(record)
                case KvPressure() | RequestRefused() | ReplicaGone():
                    pass
                case _:
                    story = self._live.get(record.request_id)
                    # It is not known if it came before the recorder.
                    if story is not None:
                        self._take_of(story, record)

    def ticks(self, after: int = 0, count_max: int = TICKS_MAX) -> list[TickRecord]:
        """Ticks with a number above `after`, oldest first; at most the last `count_max`."""
        with self._lock:
            ticks = list(self._ticks)
        newer = takewhile(lambda record: record.number > after, reversed(ticks))
        return list(islice(newer, count_max))[::-1]

    def stories(self, count_max: int = REQUESTS_MAX, viewer: Viewer = EVERYONE) -> list[Story]:
        """The viewer's live requests, then the ended ones, each newest first."""
        theirs = (each for each in self._known() if viewer.may_read(each))
        return [self._readable(each) for each in islice(theirs, count_max)]

    def story(self, request_id: RequestId) -> Story | None:
        """What happened to this request; None if it is not known, or not any more."""
        story = self.find(request_id)
        return None if story is None else self._readable(story)

    def find(self, request_id: RequestId) -> Story | None:
        """Like `story`, without a copy: only for facts that do not change, `accepted` and
        `started`."""
        with self._lock:
            return self._live.get(request_id) or self._ended.get(request_id)

    def moves(self) -> list[RequestMoved]:
        """The last moves of requests to other replicas, newest first."""
        with self._lock:
            return list(reversed(self._moves))

    def latencies(self) -> dict[str, list[float]]:
        """Seconds to the first token, between tokens, and to the end of complete answers.

        Without background requests: nobody waits for those.
        """
        known = [each for each in self._known() if not each.accepted.is_background]
        with self._lock:
            gaps = list(self._gaps)
        return {
            "first_token": [
                each.first_token_at - each.accepted.arrived_at
                for each in known
                if each.first_token_at is not None
            ],
            "gap": gaps,
            "whole": [
                each.ended_at - each.accepted.arrived_at
                for each in known
                if each.ended_at is not None and each.ending in ("stop", "length")
            ],
        }

    def histograms(self) -> Histograms:
        """A copy of all histograms."""
        with self._lock:
            return self._histograms.copied()

    def _known(self) -> list[Story]:
        with self._lock:
            return [*reversed(self._live.values()), *reversed(self._ended.values())]

    def _readable(self, story: Story) -> Story:
        # The lock is taken for each story: to copy them all under it would stop the engine.
        with self._lock:
            return story.copied() if story.ended_at is None else story

    def _keep(self, record: TickRecord) -> None:
        ticks = self._ticks
        if ticks and len(ticks) == ticks.maxlen:
            self._member_count -= len(ticks.popleft().members)
        ticks.append(record)
        self._member_count += len(record.members)
        while self._member_count > MEMBERS_MAX and len(ticks) > 1:
            self._member_count -= len(ticks.popleft().members)

    def _take_tick(self, record: TickRecord) -> None:
        self._histograms.add_tick(record)
        members = record.members
        others = [*self._go_on(members, record.at), *members.others]
        if not others:
            return
        prompts = [each.length for each in members.others if each.length > 1 or not each.samples]
        beside = len(prompts), sum(prompts)
        for member in others:
            story = self._live.get(member.request_id)
            if story is None:
                continue
            story.compute(member, record)
            if not member.samples:
                continue
            gap_s = story.add_token(member, record, beside)
            if story.goes_on(member.index):
                name = (member.request_id, member.index)
                self._going[name] = (story, story.progress[member.index])
            if story.accepted.is_background:
                continue
            if gap_s is not None:
                self._add_gap(gap_s, 1)
            elif story.completion_tokens == 1:
                self._histograms["first_token_seconds"].add(record.at - story.accepted.arrived_at)

    def _stop_going(self, story: Story) -> None:
        """There is more to tell of its next tokens."""
        for index in story.progress:
            self._going.pop((story.id, index), None)

    def _go_on(self, members: Members, at: float) -> list[Member]:
        """One more token for those that only go on: `compute` and `add_token` in short.

        Returns those of which there is more to tell, such as the longest gap so far.
        """
        others = []
        last_at, count = at, 0
        for place, name in enumerate(members.names):
            story, progress = self._going.get(name, (None, None))
            if (
                story is None
                or progress is None
                or story.gap is None
                or progress.token_at is None
                or at - progress.token_at > story.gap.seconds
            ):
                others.append(Member(*name, members.slots[place], members.starts[place], 1, True))
                continue
            if progress.token_at != last_at:
                # Most have their last token from one tick, so their gaps are equal.
                self._add_gap(at - last_at, count)
                last_at, count = progress.token_at, 0
            count += not story.accepted.is_background
            progress.token_at = story.last_token_at = at
            progress.reached += 1
            progress.token_count += 1
            story.completion_tokens += 1
        self._add_gap(at - last_at, count)
        return others

    def _take_accepted(self, record: RequestAccepted) -> None:
        unstarted = self._unstarted
        # A live request does not wait behind background ones.
        waiting = unstarted.total() if record.is_background else unstarted[False]
        running = len(self._live) - unstarted.total()
        self._live[record.request_id] = Story(record, waiting, running)
        unstarted[record.is_background] += 1

    def _take_of(self, story: Story, record: LifeRecord) -> None:
        """Something happened to a request that has not ended."""
        match record:
            case RequestStarted():
                self._unstarted[story.accepted.is_background] -= 1
                self._histograms.add_started(record, story)
                story.start(record)
            case RequestPreempted():
                by = self._live.get(record.by)
                priority = None if by is None else by.accepted.priority
                self._stop_going(story)
                story.lose(Loss(record.at, record.index, record.reason, record.by, priority))
            case RequestProgressed():
                self._take_progressed(story, record)
            case RequestMoved():
                self._moves.append(record)
                story.move(record)
            case RequestDone() | RequestFailed():
                self._take_end(story, record)
            case _:
                assert_never(record)

    def _take_progressed(self, story: Story, record: RequestProgressed) -> None:
        is_first = story.advance(record)
        if story.accepted.is_background:
            return
        if is_first:
            self._histograms["first_token_seconds"].add(record.at - story.accepted.arrived_at)
        for gap_s in record.token_gaps_s:
            self._add_gap(gap_s, 1)

    def _add_gap(self, gap_s: float, count: int) -> None:
        if count:
            self._gaps.extend([gap_s] * count)
            self._histograms["token_gap_seconds"].add(gap_s, count)

    def _take_lost(self, record: BackendLost) -> None:
        if record.restarts_failed == 0:
            self._going.clear()
            for story in self._live.values():
                if story.slot is not None:
                    story.lose(Loss(record.at, 0, None))

    def _take_end(self, story: Story, record: RequestDone | RequestFailed) -> None:
        del self._live[story.id]
        self._stop_going(story)
        story.end(record)
        self._histograms.add_ended(record, story)
        self._unstarted[story.accepted.is_background] -= story.started is None
        self._ended[story.id] = story
        if len(self._ended) > self._requests_max:
            del self._ended[next(iter(self._ended))]
