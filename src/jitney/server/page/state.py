"""The data of the page and of `/slots`, in JSON. Event loop only.

The engine is asked for its detail at most every FRESH_S seconds, however many pages are open, and
never when none is. A stuck engine does not answer; then the page shows the last detail and its age.
One reply is made at a time, with a pause after it: with hundreds of slots it takes milliseconds,
and no stream goes on meanwhile. A viewer sees the name, text and story of its own requests, and
only numbers of others.

`/slots` has llama-server's form, with as many rows as sequences may run at once. Each has the
number of a slot of the backend's memory, which has a few more slots for cached prefixes. Fields of
llama-server that are not known here are left out; `jitney` holds fields that it does not have.

Of a cluster, every replica has its own slots, memory and queue. `/slots` numbers their slots one
replica after the other.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from itertools import islice

import msgspec

from jitney.core.limits import PREFIX_STRIDE
from jitney.core.request import RequestId
from jitney.core.snapshot import PREFIX_SHOWN_STRIDES, Detail, SlotState, SlotView, Waiting
from jitney.engine.engine import EngineState
from jitney.engine.served_engine import ReplicaView
from jitney.records import TickRecord
from jitney.server import limits
from jitney.server.observe.explain import duration_text, explain, phases
from jitney.server.observe.monitor import Monitor
from jitney.server.observe.recorder import Viewer
from jitney.server.observe.story import Story, figures
from jitney.server.page.replica_panes import (
    MOVES_SHOWN,
    REPLICAS_SHOWN,
    Fields,
    move_row,
    prefix_rows,
    replica_fields,
)
from jitney.server.service import Service

FRESH_S = 0.2
LOOK_S_MAX = 1.0
TAIL_CHARACTERS = 240
TICKS_SHOWN = 400
STORIES_SHOWN = 40
RATE_WINDOW_S = 5.0
PERCENTILES = (0.50, 0.95, 0.99)

NOBODY = -1
"""In llama-server's numbers: no task, and no limit."""


class PageState:
    """Makes the data of the page."""

    def __init__(self, service: Service, monitor: Monitor) -> None:
        self._service = service
        self._engine = service.engine
        self._recorder = monitor.recorder
        self._clock = monitor.clock
        self._detail: Detail | None = None
        self._looking: asyncio.Future[Detail] | None = None
        self._turn = asyncio.Lock()
        self._prefix_secret = secrets.token_bytes(16)

    async def state(self, viewer: Viewer, ticks_after: int, *, wants_requests: bool) -> bytes:
        """All data of the page, in JSON: the ticks after the given one, and requests if wanted."""
        detail = await self.look()
        return await self._in_turn(
            lambda: self._fields(detail, viewer, ticks_after, wants_requests=wants_requests)
        )

    async def slots(self, detail: Detail, viewer: Viewer) -> bytes:
        """The rows of `/slots`, in JSON."""
        return await self._in_turn(lambda: self._slot_rows(detail, viewer))

    async def _in_turn(self, make: Callable[[], object]) -> bytes:
        """Call `make`, one caller at a time; its result in JSON."""
        async with self._turn:
            began_at = self._clock.now()
            content = msgspec.json.encode(make())
            # Pause as long as it took: half of the time belongs to the streams.
            await asyncio.sleep(self._clock.now() - began_at)
        return content

    def _fields(
        self, detail: Detail | None, viewer: Viewer, ticks_after: int, *, wants_requests: bool
    ) -> Fields:
        now, stats, views = self._clock.now(), self._engine.stats(), self._engine.replica_views()
        fields: Fields = {
            "model": self._service.model_name,
            "backend": self._engine.backend.traits.name,
            "health": self._service.readiness(),
            "stats": stats,
            "prefix_tokens": PREFIX_SHOWN_STRIDES * PREFIX_STRIDE,
            "rate": self._rate(now, stats.uptime_s),
            "ticks": [_tick(each) for each in self._recorder.ticks(ticks_after, TICKS_SHOWN)],
        }
        if views is not None:
            fields |= self._replicas(views, viewer, now)
        elif detail is not None:
            fields["seen_s_ago"] = now - detail.at
            fields |= self._seen(detail, len(detail.slots), viewer, now)
        if wants_requests:
            stories = self._recorder.stories(STORIES_SHOWN, viewer)
            fields["requests"] = [story_fields(each, now) for each in stories]
            latencies = self._recorder.latencies()
            fields["latency"] = {name: percentiles(latencies[name]) for name in latencies}
        return fields

    def _seen(self, detail: Detail, slot_count: int, viewer: Viewer, now: float) -> Fields:
        """Slots, memory and queue of one engine; `slot_count` are those of all."""
        return {
            "slots": self._pane_rows(detail, viewer, slot_count),
            "memory": detail.stretches,
            "queue": [self._waiting(each, viewer, now) for each in detail.waiting],
        }

    def _replicas(self, views: tuple[ReplicaView, ...], viewer: Viewer, now: float) -> Fields:
        slot_count = sum(len(each.detail.slots) for each in views if each.detail is not None)
        panes: list[Fields] = []
        for place, view in enumerate(views):
            pane = replica_fields(view, now)
            if view.detail is not None and place < REPLICAS_SHOWN:
                pane |= self._seen(view.detail, slot_count, viewer, now)
            panes.append(pane)
        moves = islice(self._recorder.moves(), MOVES_SHOWN)
        return {
            "rate": {
                "tokens_s": sum(each.tokens_per_s for each in views),
                "prefill_tokens_s": sum(each.prefill_tokens_per_s for each in views),
            },
            "replicas": panes,
            "prefixes": prefix_rows(views, self._prefix_secret),
            "moves": [move_row(each, self._name(each.request_id, viewer), now) for each in moves],
        }

    def request(self, viewer: Viewer, request_id: RequestId) -> bytes | None:
        """All data of one request, in JSON; None if it is not known, or not any more, or
        another's."""
        story = self._recorder.story(request_id)
        if story is None or not viewer.may_read(story):
            return None
        now, arrived_at = self._clock.now(), story.accepted.arrived_at
        fields = story_fields(story, now) | _details(story)
        fields["losses"] = [
            {
                "at_s": each.at - arrived_at,
                "reason": each.word,
                "by": None if each.by is None else self._name(each.by, viewer),
            }
            for each in story.losses
        ]
        if story.replica:
            fields["moves"] = [
                {**move_row(each, story.id, now), "at_s": each.at - arrived_at}
                for each in story.moves
            ]
        return msgspec.json.encode(fields)

    async def look(self) -> Detail | None:
        """The engine's detail, or the last one that it gave; None if it never gave one."""
        now = self._clock.now()
        is_fresh = self._detail is not None and now - self._detail.at < FRESH_S
        if is_fresh or self._engine.state is EngineState.STOPPED:
            return self._detail
        if self._looking is None or self._looking.done():
            self._looking = asyncio.wrap_future(self._engine.look(TAIL_CHARACTERS))
        try:
            # Shielded, because several viewers wait for the same answer.
            self._detail = await asyncio.wait_for(asyncio.shield(self._looking), LOOK_S_MAX)
        except TimeoutError:
            return self._detail
        return self._detail

    def _rate(self, now: float, uptime_s: float) -> Fields:
        recent = [each for each in self._recorder.ticks() if each.at > now - RATE_WINDOW_S]
        # Right after the start the window is shorter.
        window_s = min(RATE_WINDOW_S, max(uptime_s, 0.5))
        return {
            "tokens_s": sum(each.sampled_tokens for each in recent) / window_s,
            "prefill_tokens_s": sum(each.prefill_tokens for each in recent) / window_s,
        }

    def _pane_rows(self, detail: Detail, viewer: Viewer, slot_count: int) -> list[Fields]:
        """The slots of one engine; those of all engines share the characters of texts."""
        characters_max = min(TAIL_CHARACTERS, limits.PAGE_TEXT_CHARACTERS // max(slot_count, 1))
        rows: list[Fields] = []
        for view in detail.slots:
            row: Fields = {"slot": view.slot, "state": view.state, "tokens": view.token_count}
            if view.request_id is not None:
                story = self._recorder.find(view.request_id)
                may_read, index = viewer.may_read(story), view.index or 0
                tails = detail.tails.get(view.request_id, ())
                text = tails[index][-characters_max:] if index < len(tails) else ""
                row["request"] = view.request_id if may_read else None
                row |= {"index": index, "text": text if may_read else None}
                if story is not None:
                    row |= {
                        "known": view.known_count,
                        "made": _sampled_count(story, view),
                        "limit": story.accepted.max_tokens,
                    }
            rows.append(row)
        return rows

    def _slot_rows(self, detail: Detail, viewer: Viewer) -> list[Fields]:
        """One row for each slot that runs or could run, by number; one engine after the other."""
        views = self._engine.replica_views()
        engines: list[tuple[str | None, tuple[SlotView, ...], int]]
        if views is None:
            engines = [(None, detail.slots, self._engine.settings.max_num_seqs)]
        else:
            engines = [
                (view.name, view.detail.slots if view.detail else (), view.snapshot.slot_count)
                for view in views
            ]
        rows: list[Fields] = []
        for place, (replica, slots, slot_count) in enumerate(engines):
            first = place * self._engine.backend.traits.slots_max
            by_number = {view.slot: view for view in slots}
            running = {view.slot for view in slots if view.state is not SlotState.CACHED}
            idle = (slot for slot in range(slot_count) if slot not in running)
            numbers = sorted([*running, *islice(idle, max(0, slot_count - len(running)))])
            rows += [self._slot_row(first + n, by_number.get(n), viewer, replica) for n in numbers]
        return rows

    def _slot_row(
        self, number: int, view: SlotView | None, viewer: Viewer, replica: str | None
    ) -> Fields:
        ours: Fields = {
            "state": "idle" if view is None else view.state,
            "tokens": 0 if view is None else view.token_count,
        }
        if view is not None and view.request_id is not None:
            ours["known"] = view.known_count
        row: Fields = {
            "id": number,
            "id_task": NOBODY,
            "n_ctx": self._engine.settings.model_len_max,
            "speculative": False,
            "is_processing": view is not None and view.state is not SlotState.CACHED,
            "jitney": ours if replica is None else {**ours, "replica": replica},
        }
        if view is None or view.request_id is None:
            return row
        row["id_task"] = self._name(view.request_id, viewer)
        story = self._recorder.find(view.request_id)
        return row if story is None else row | _progress_of(story, view)

    def _waiting(self, waiting: Waiting, viewer: Viewer, now: float) -> Fields:
        return {
            "request": self._name(waiting.request_id, viewer),
            "index": waiting.index,
            "waited_s": now - waiting.accepted_at,
            "tokens": waiting.token_count,
            "priority": waiting.priority.name.lower(),
            "preempted": waiting.ran_before,
            "reason": waiting.reason,
        }

    def _name(self, request_id: RequestId, viewer: Viewer) -> RequestId | None:
        """The request's id, or None if the viewer may not read it: a caller may have chosen it."""
        return request_id if viewer.may_read(self._recorder.find(request_id)) else None


def _sampled_count(story: Story, view: SlotView) -> int:
    """Tokens of a completion, also those that are computed again: after a preemption or a move."""
    return max(0, view.known_count - story.accepted.prompt_tokens)


def _progress_of(story: Story, view: SlotView) -> Fields:
    """How far a request is, in llama-server's names."""
    prompt, limit = story.accepted.prompt_tokens, story.accepted.max_tokens
    sampled = _sampled_count(story, view)
    limit_shown = NOBODY if limit is None else limit
    return {
        "n_prompt_tokens": prompt,
        "n_prompt_tokens_processed": max(0, min(view.token_count, prompt) - story.cached_tokens),
        "n_prompt_tokens_cache": story.cached_tokens,
        "params": {"n_predict": limit_shown, "max_tokens": limit_shown},
        "next_token": [
            {
                "has_next_token": True,
                "n_remain": NOBODY if limit is None else max(0, limit - sampled),
                "n_decoded": sampled,
            }
        ],
    }


def story_fields(story: Story, now: float) -> Fields:
    """A request in a list: its bar and its explanation."""
    arrived_at = story.accepted.arrived_at
    return {
        "request": story.id,
        "ago_s": now - arrived_at,
        "total_s": story.until(now) - arrived_at,
        "ending": story.ending,
        "words": explain(story, now),
        "phases": phases(story, now),
    }


def percentiles(values: Iterable[float]) -> list[float | None]:
    """The PERCENTILES of the values by nearest rank, in seconds; None without values."""
    ranked = sorted(values)
    if not ranked:
        return [None for _ in PERCENTILES]
    last = len(ranked) - 1
    return [ranked[min(last, int(share * len(ranked)))] for share in PERCENTILES]


def _tick(record: TickRecord) -> tuple[float, ...]:
    return (
        record.number,
        record.decode_tokens,
        record.prefill_tokens,
        record.batch_size,
        round(record.tick_ms, 2),
        record.queue_depth,
        record.preempted_count,
    )


def _details(story: Story) -> Fields:
    origin = story.accepted.arrived_at

    def since(at: float | None) -> float | None:
        return None if at is None else at - origin

    return {
        **figures(story),
        "sent_s": since(story.accepted.sent_at),
        "started_s": since(None if story.started is None else story.started.at),
        "first_token_s": since(story.first_token_at),
        "last_token_s": since(story.last_token_at),
        "slowest_gap": None if story.gap is None else duration_text(story.gap.seconds),
        "spans": [each._replace(at=each.at - origin) for each in story.spans],
    }
