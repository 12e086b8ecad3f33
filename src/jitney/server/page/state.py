"""What the page shows, as plain values for JSON. Event loop only.

Asks the engine for a sight of itself at most every FRESH_S seconds, however many pages are open,
and never when none is. An engine that is stuck does not answer; then the last sight is shown, and
its age says so. Texts are shown of the tenant that asks only; None stands for everyone.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from jitney.core.gauges import SlotState
from jitney.core.picture import Waiting, WaitReason
from jitney.core.request import RequestId
from jitney.engine.engine import Engine, EngineState
from jitney.engine.records import TickRecord
from jitney.engine.sight import Sight
from jitney.server.explain import duration_text, explain, phases
from jitney.server.lookout import Lookout
from jitney.server.recorder import Story

FRESH_S = 0.2
LOOK_S_MAX = 1.0
TAIL_CHARACTERS = 240
TICKS_SHOWN = 400
STORIES_SHOWN = 40
RATE_WINDOW_S = 5.0
PERCENTILES = (0.50, 0.95, 0.99)

# A value that JSON can carry.
Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
Fields = dict[str, Value]

_REASONS = {
    WaitReason.SLOT: "every slot is taken",
    WaitReason.MEMORY: "there is not enough free memory",
    WaitReason.PREFIX: "another request computes its prefix",
    WaitReason.GROUP: "its group has not departed",
    WaitReason.TRIAL: "it runs alone after failures",
    WaitReason.BUDGET: "the next batch is full",
    WaitReason.TURN: "others are before it",
    WaitReason.NEXT: "it starts at the next tick",
}


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks: with a tenant, only that tenant's texts are shown."""

    tenant: str | None = None

    def may_read(self, story: Story | None) -> bool:
        """Whether the text of this request is theirs to see."""
        return self.tenant is None or (story is not None and story.tenant == self.tenant)


class PageState:
    """Makes what the page asks for."""

    def __init__(self, engine: Engine, lookout: Lookout, model_name: str) -> None:
        self._engine = engine
        self._lookout = lookout
        self._model_name = model_name
        self._sight: Sight | None = None
        self._looking: asyncio.Future[Sight] | None = None

    async def state(self, viewer: Viewer, ticks_after: int, *, wants_requests: bool) -> Fields:
        """The whole page; ticks after the given one, requests only when wanted."""
        sight = await self._look()
        now = self._lookout.clock.now()
        fields: Fields = {
            "at": now,
            "model": self._model_name,
            "backend": self._engine.backend.traits.name,
            "health": self._health(),
            "limits": self._limits(),
            "counts": self._counts(),
            "rate": self._rate(now),
            "ticks": [_tick(each) for each in self._ticks(ticks_after)],
        }
        if sight is not None:
            fields["seen_s_ago"] = now - sight.at
            fields["slots"] = self._slots(sight, viewer)
            fields["memory"] = [
                [each.start, each.end, list(each.slots)] for each in sight.picture.stretches
            ]
            fields["queue"] = [_waiting(each, now) for each in sight.picture.waiting]
        if wants_requests:
            stories = self._lookout.recorder.stories()
            fields["requests"] = [story_fields(each, now) for each in stories[:STORIES_SHOWN]]
            fields["latency"] = self._latency(stories)
        return fields

    def request(self, request_id: RequestId) -> Fields | None:
        """All that is known of one request; None when it is not known (any more)."""
        story = self._lookout.recorder.story(request_id)
        if story is None:
            return None
        return {**story_fields(story, self._lookout.clock.now()), **_details(story)}

    async def _look(self) -> Sight | None:
        now = self._lookout.clock.now()
        is_fresh = self._sight is not None and now - self._sight.at < FRESH_S
        if is_fresh or self._engine.state is EngineState.STOPPED:
            return self._sight
        if self._looking is None or self._looking.done():
            self._looking = asyncio.wrap_future(self._engine.look(TAIL_CHARACTERS))
        try:
            # Shielded, because several viewers wait for one and the same look.
            self._sight = await asyncio.wait_for(asyncio.shield(self._looking), LOOK_S_MAX)
        except TimeoutError:
            return self._sight
        return self._sight

    def _health(self) -> Fields:
        engine, metrics = self._engine, self._lookout.metrics
        failure = engine.failure
        return {
            "state": engine.state.value,
            "stalled_s": metrics.stalled_s(metrics.totals()),
            "uptime_s": engine.stats().uptime_s,
            "failure": None if failure is None else "The engine has stopped.",
        }

    def _limits(self) -> Fields:
        settings = self._engine.settings
        return {
            "sequences_max": settings.sequences_max,
            "batch_tokens_max": settings.batch_tokens_max,
            "queue_requests_max": settings.queue_requests_max,
            "model_len_max": settings.model_len_max,
        }

    def _counts(self) -> Fields:
        stats = self._engine.stats()
        return {
            "running": stats.active_slots,
            "waiting": stats.current_queue_size,
            "kv_tokens": stats.kv_tokens,
            "kv_used": stats.kv_used,
            "kv_cached": stats.kv_cached,
            "accepted": stats.total_requests,
            "completed": stats.completed_requests,
            "cancelled": stats.cancelled_requests,
            "failed": stats.failed_requests,
            "refused": stats.refused_requests,
            "preempted": stats.preemption_count,
            "evicted": stats.eviction_count,
            "backend_losses": stats.backend_failure_count,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.cached_tokens,
            "completion_tokens": stats.completion_tokens,
        }

    def _ticks(self, after: int) -> list[TickRecord]:
        return self._lookout.recorder.ticks(after, TICKS_SHOWN)

    def _rate(self, now: float) -> Fields:
        recent = self._lookout.recorder.ticks_since(now - RATE_WINDOW_S)
        made = sum(each.sampled_tokens for each in recent)
        prefilled = sum(each.prefill_tokens for each in recent)
        # Right after the start the window is shorter than it will be.
        window_s = min(RATE_WINDOW_S, max(self._engine.stats().uptime_s, 0.5))
        return {"tokens_s": made / window_s, "prefill_tokens_s": prefilled / window_s}

    def _latency(self, stories: list[Story]) -> Fields:
        firsts = [
            each.first_token_at - each.arrived_at
            for each in stories
            if each.first_token_at is not None
        ]
        wholes = [
            each.ended_at - each.arrived_at
            for each in stories
            if each.ended_at is not None and each.ending in ("stop", "length")
        ]
        return {
            "first_token": percentiles(firsts),
            "gap": percentiles(self._lookout.recorder.gaps()),
            "whole": percentiles(wholes),
            "count": len(wholes),
        }

    def _slots(self, sight: Sight, viewer: Viewer) -> list[Value]:
        rows: list[Value] = []
        for view in sight.gauges.slots:
            row: Fields = {"slot": view.slot, "state": view.state.value, "tokens": view.token_count}
            if view.state is not SlotState.CACHED and view.request_id is not None:
                story = self._lookout.recorder.story(view.request_id)
                tails = sight.tails.get(view.request_id, ())
                index = view.index or 0
                text = tails[index] if index < len(tails) else ""
                row |= {"request": view.request_id, "index": index}
                row["text"] = text if viewer.may_read(story) else None
                if story is not None:
                    row |= {
                        "prompt": story.prompt_tokens,
                        "made": max(0, view.token_count + 1 - story.prompt_tokens),
                        "limit": story.max_tokens,
                    }
            rows.append(row)
        return rows


def story_fields(story: Story, now: float) -> Fields:
    """A request in a list: its bar and its words."""
    end = story.ended_at if story.ended_at is not None else now
    return {
        "request": story.id,
        "ago_s": now - story.arrived_at,
        "total_s": end - story.arrived_at,
        "ending": story.ending,
        "priority": story.priority.name.lower(),
        "words": explain(story, now),
        "phases": [[each.kind, each.start_s, each.end_s] for each in phases(story, now)],
    }


def percentiles(values: Iterable[float]) -> list[Value]:
    """The PERCENTILES of the values by nearest rank, in seconds; None when there are none."""
    ranked = sorted(values)
    if not ranked:
        return [None for _ in PERCENTILES]
    last = len(ranked) - 1
    return [ranked[min(last, int(share * len(ranked)))] for share in PERCENTILES]


def _tick(record: TickRecord) -> Value:
    return [
        record.number,
        record.decode_tokens,
        record.prefill_tokens,
        record.batch_size,
        round(record.tick_ms, 2),
        record.queue_depth,
        record.preempted_count,
    ]


def _waiting(waiting: Waiting, now: float) -> Fields:
    return {
        "request": waiting.request_id,
        "waited_s": now - waiting.arrived_at,
        "tokens": waiting.token_count,
        "priority": waiting.priority.name.lower(),
        "preempted": waiting.was_preempted,
        "reason": _REASONS[waiting.reason],
    }


def _details(story: Story) -> Fields:
    origin = story.arrived_at

    def since(at: float | None) -> Value:
        return None if at is None else at - origin

    losses: list[Value] = [
        {
            "at_s": loss.at - origin,
            "reason": "backend lost" if loss.reason is None else loss.reason.value,
            "by": loss.by,
        }
        for loss in story.losses
    ]
    spans: list[Value] = [
        [each.tick, each.at - origin, each.start, each.length, each.seconds] for each in story.spans
    ]
    return {
        "prompt_tokens": story.prompt_tokens,
        "cached_tokens": story.cached_tokens,
        "completion_tokens": story.completion_tokens,
        "recomputed_tokens": story.recomputed_tokens,
        "completions": story.completions,
        "started_s": since(story.started_at),
        "first_token_s": since(story.first_token_at),
        "last_token_s": since(story.last_token_at),
        "slowest_gap": None if story.gap is None else duration_text(story.gap.seconds),
        "losses": losses,
        "spans": spans,
    }
