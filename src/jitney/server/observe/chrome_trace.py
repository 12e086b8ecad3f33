"""The recorded ticks and requests in Chrome's trace event format, for Perfetto or chrome://tracing.

One process is the engine: a lane of ticks, a lane for each slot, and counters for memory, queue and
batch. The other process has a row for each request that the viewer may read. The trace is made in
slices: a full one has megabytes, and to make it at once would stop all other threads. Pure; any
thread but the event loop's. Times are microseconds on the engine's clock.
"""

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain, islice

from jitney.core.request import RequestId
from jitney.records import Member, TickRecord
from jitney.server import limits
from jitney.server.observe.explain import explain, phases
from jitney.server.observe.recorder import Recorder, Viewer
from jitney.server.observe.story import Story, figures, move_fields

ENGINE, REQUESTS = 1, 2
TICK_LANE = 0
SLOT_LANE_FIRST = 1
COUNTER_LANE = 0

JsonObject = dict[str, object]

EVENTS_PER_TICK = 4
"""Besides those of its members."""


def trace_slices(
    recorder: Recorder, now: float, viewer: Viewer, *, is_whole: bool
) -> Iterator[bytes]:
    """One JSON object, in slices: the last ticks and requests, or all that are recorded.

    Requests of other tenants have no name in it.
    """
    ticks, stories = recorder.ticks(), recorder.stories(viewer=viewer)
    # Without a tenant all names are shown: some ticks are older than the stories.
    named = None if viewer.tenant is None else {each.id for each in stories}
    if not is_whole:
        ticks, stories = _last_ticks(ticks), stories[: limits.TRACE_REQUESTS]
    events = chain(_names(ticks), _tick_events(ticks, named), _story_events(stories, now))
    yield b'{"displayTimeUnit":"ms","traceEvents":['
    divider = b""
    while chunk := list(islice(events, limits.TRACE_SLICE_EVENTS)):
        yield divider + json.dumps(chunk, separators=(",", ":"))[1:-1].encode()
        divider = b","
    yield b"]}"


def _last_ticks(ticks: list[TickRecord]) -> list[TickRecord]:
    """The last ticks that have at most TRACE_EVENTS events together; at least one."""
    left = limits.TRACE_EVENTS
    for start in range(len(ticks) - 1, -1, -1):
        left -= len(ticks[start].members) + EVENTS_PER_TICK
        if left < 0:
            return ticks[min(start + 1, len(ticks) - 1) :]
    return ticks


def _names(ticks: Iterable[TickRecord]) -> Iterator[JsonObject]:
    yield _name_event("process_name", ENGINE, 0, "engine")
    yield _name_event("process_name", REQUESTS, 0, "requests")
    yield _name_event("thread_name", ENGINE, TICK_LANE, "ticks")
    slots = {member.slot for tick in ticks for member in tick.members}
    for slot in sorted(slots):
        yield _name_event("thread_name", ENGINE, SLOT_LANE_FIRST + slot, f"slot {slot}")


def _event(
    kind: str, name: str, place: tuple[int, int], arguments: JsonObject, **times: float
) -> JsonObject:
    process, lane = place
    return {"ph": kind, "name": name, "pid": process, "tid": lane, "args": arguments, **times}


def _name_event(kind: str, process: int, lane: int, name: str) -> JsonObject:
    return _event("M", kind, (process, lane), {"name": name})


def _tick_events(
    ticks: Iterable[TickRecord], named: Container[RequestId] | None
) -> Iterator[JsonObject]:
    for tick in ticks:
        start = tick.at - tick.tick_ms / 1e3
        arguments: JsonObject = {
            "batch_size": tick.batch_size,
            "decode_tokens": tick.decode_tokens,
            "prefill_tokens": tick.prefill_tokens,
            "sampled_tokens": tick.sampled_tokens,
            "preempted": tick.preempted_count,
            "forward_ms": round(tick.forward_ms, 3),
        }
        yield _slice(f"tick {tick.number}", TICK_LANE, start, tick.at, arguments)
        for member in tick.members:
            is_named = named is None or member.request_id in named
            name, arguments = _member(member, member.request_id if is_named else None)
            yield _slice(name, SLOT_LANE_FIRST + member.slot, start, tick.at, arguments)
        in_use = {"used": tick.kv_used - tick.kv_cached, "cached": tick.kv_cached}
        yield _counter("kv tokens", tick.at, in_use)
        yield _counter("queue", tick.at, {"waiting": tick.queue_depth})
        batch = {"decode": tick.decode_tokens, "prefill": tick.prefill_tokens}
        yield _counter("batch tokens", tick.at, batch)


def _member(member: Member, request_id: RequestId | None) -> tuple[str, JsonObject]:
    kind = "decode" if member.samples and member.length == 1 else f"prefill {member.length}"
    arguments: JsonObject = {
        "request": request_id,
        "completion": member.index,
        "start": member.start,
        "length": member.length,
    }
    return f"{request_id or 'another key'} {kind}", arguments


def _story_events(stories: Iterable[Story], now: float) -> Iterator[JsonObject]:
    by_arrival = sorted(stories, key=lambda each: each.accepted.arrived_at)
    for lane, story in enumerate(by_arrival, start=1):
        yield _name_event("thread_name", REQUESTS, lane, str(story.id))
        arguments: JsonObject = {"why": explain(story, now), **figures(story)}
        arrived_at, end = story.accepted.arrived_at, story.until(now)
        yield _slice(str(story.id), lane, arrived_at, end, arguments, REQUESTS)
        for kind, start_s, end_s in phases(story, now):
            yield _slice(kind, lane, arrived_at + start_s, arrived_at + end_s, {}, REQUESTS)
        for move in story.moves:
            name, at = f"moved from {move.from_replica} to {move.to_replica}", move.at * 1e6
            yield _event("i", name, (REQUESTS, lane), dict(move_fields(move)), ts=round(at, 1))


def _slice(
    name: str, lane: int, start: float, end: float, arguments: JsonObject, process: int = ENGINE
) -> JsonObject:
    ts, dur = round(start * 1e6, 1), round(max(end - start, 0.0) * 1e6, 1)
    return _event("X", name, (process, lane), arguments, ts=ts, dur=dur)


def _counter(name: str, at: float, values: Mapping[str, int]) -> JsonObject:
    return _event("C", name, (ENGINE, COUNTER_LANE), dict(values), ts=round(at * 1e6, 1))
