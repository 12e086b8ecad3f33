"""Why a request took as long as it did, in words, and as phases that a bar can show.

Pure functions over a recorder's story; any thread. Every number in a sentence was recorded:
nothing is guessed, and what was not seen is not mentioned.
"""

from dataclasses import dataclass

from jitney.core.events import PreemptReason
from jitney.core.request import Priority
from jitney.server.observe.recorder import Gap, Loss, Story

GAP_WORTH_A_WORD_S = 0.05
GAP_FACTOR = 2.0
"""The slowest gap is mentioned from this length on, when it is so many times the mean."""

QUEUE_WORTH_A_WORD_S = 0.001
DOOR_WORTH_A_WORD_S = 0.005
"""Reading and tokenising always takes a moment; a shorter one counts as waiting."""

_ENDINGS = {
    "stop": "",
    "length": "stopped at its limit of tokens",
    "abort": "was cancelled",
    "deadline": "ran into its time limit",
    "error": "failed",
}


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a request's life: reading, queued, prefill, generating, preempted or paused."""

    kind: str
    start_s: float
    end_s: float


def explain(story: Story, now: float) -> str:
    """One or two sentences; `now` is used for a request that still lives."""
    parts = [_door(story), _queue(story, now)]
    if story.started_at is not None:
        parts.append(_prefill(story))
        parts += _losses(story)
        parts.append(_generation(story, now))
    said = [part for part in parts if part]
    sentence = ", ".join(said)
    gap = _gap(story)
    if gap:
        sentence += f"; {gap}"
    ending = _ENDINGS.get(story.ending or "", "")
    if ending:
        sentence += f"; it {ending}"
        if story.message:
            sentence += f": {story.message.rstrip('.')}"
    return sentence[:1].upper() + sentence[1:] + "."


def phases(story: Story, now: float) -> list[Phase]:
    """The parts of its life in order, without overlap, from arrival to the end or to now."""
    origin = story.arrived_at
    end = story.ended_at if story.ended_at is not None else now
    door_s = _door_s(story)
    marks: list[tuple[float, str]] = [(origin, "reading")] if door_s else []
    marks.append((origin + door_s, "queued"))
    if story.started_at is not None:
        marks.append((story.started_at, "prefill"))
    for number, loss in enumerate(story.losses):
        is_paused = loss.reason is PreemptReason.PAUSED
        marks.append((loss.at, "paused" if is_paused else "preempted"))
        if number < len(story.resumed_at):
            marks.append((story.resumed_at[number], "prefill"))
            after = _next_progress(story, story.resumed_at[number])
            if after is not None:
                marks.append((after, "generating"))
    if story.first_token_at is not None and not any(
        loss.at < story.first_token_at for loss in story.losses
    ):
        marks.append((story.first_token_at, "generating"))
    marks.sort(key=lambda mark: mark[0])
    bounds = [*(at for at, _ in marks[1:]), end]
    found: list[Phase] = []
    for (start, kind), stop in zip(marks, bounds, strict=True):
        if stop <= start:
            continue
        if found and found[-1].kind == kind:
            found[-1] = Phase(kind, found[-1].start_s, stop - origin)
        else:
            found.append(Phase(kind, start - origin, stop - origin))
    return found


def duration_text(seconds: float) -> str:
    """A time for people: 0.4 ms, 120 ms, 2.4 s, 3 min 20 s."""
    if seconds < 0.001:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1.0:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def _next_progress(story: Story, resumed_at: float) -> float | None:
    """When a request that ran again had caught up: after the last span that it recomputed."""
    spans = [span for span in story.spans if span.at >= resumed_at]
    if story.first_token_at is None or story.last_token_at is None:
        return None
    if not spans:
        return resumed_at
    following = [loss.at for loss in story.losses if loss.at > resumed_at]
    before = [span.at for span in spans if not following or span.at <= following[0]]
    caught_up = max(before, default=resumed_at)
    return caught_up if story.last_token_at >= caught_up else None


def _door_s(story: Story) -> float:
    """The time before it was handed to the engine, if that is worth telling."""
    seconds = story.sent_at - story.arrived_at
    return seconds if seconds >= DOOR_WORTH_A_WORD_S else 0.0


def _door(story: Story) -> str:
    seconds = _door_s(story)
    return f"read and tokenised in {duration_text(seconds)}" if seconds else ""


def _queue(story: Story, now: float) -> str:
    is_waiting = story.started_at is None
    until = story.started_at
    if until is None:
        until = story.ended_at if story.ended_at is not None else now
    seconds = until - story.sent_at
    if seconds < QUEUE_WORTH_A_WORD_S and not is_waiting:
        return "started at once"
    verb = "queued"
    if is_waiting:
        verb = "never ran: waited" if story.ended_at is not None else "has been waiting"
    said = f"{verb} {duration_text(seconds)}"
    if story.waiting_before:
        return f"{said} behind {_count(story.waiting_before, 'request')}"
    if story.running_before:
        return f"{said} beside {_count(story.running_before, 'running request')}"
    return said


def _prefill(story: Story) -> str:
    if story.prefill_ticks == 0:
        return ""
    tokens = _count(story.prefill_tokens, "token")
    said = f"prefilled in {_count(story.prefill_ticks, 'tick')} ({tokens}"
    if story.cached_tokens:
        said += f", {story.cached_tokens:,} more from the cache"
    return said + ")"


def _losses(story: Story) -> list[str]:
    said = []
    recomputed = story.recomputed_tokens
    if story.preempted_count:
        others = (None, PreemptReason.PAUSED)
        losses = [loss for loss in story.losses if loss.reason not in others]
        why = "; ".join(dict.fromkeys(_why(loss) for loss in losses))
        said.append(f"preempted {_times(story.preempted_count)} ({why}")
        if recomputed and not story.failure_count:
            said[-1] += f"; recomputed {_count(recomputed, 'token')}"
        said[-1] += ")"
    if story.paused_count:
        said.append(f"paused {_times(story.paused_count)} by its caller")
    if story.failure_count:
        said.append(f"interrupted {_times(story.failure_count)} by a failure of the backend")
        if recomputed:
            said[-1] += f" (recomputed {_count(recomputed, 'token')})"
    return said


def _why(loss: Loss) -> str:
    match loss.reason:
        case PreemptReason.DISPLACED:
            if loss.by_priority is None:
                return "displaced by a more urgent request"
            return f"displaced by a request of {_class(loss.by_priority)} priority"
        case PreemptReason.SAVED:
            return "memory ran out; its own was saved and restored"
        case _:
            return "memory ran out"


def _generation(story: Story, now: float) -> str:
    if story.first_token_at is None or story.last_token_at is None:
        return "has no token yet" if story.ended_at is None else "made no token"
    verb = "generated" if story.ended_at is not None else "has generated"
    said = f"{verb} {_count(story.completion_tokens, 'token')}"
    if story.completions > 1:
        said += f" in {story.completions} completions"
    seconds = story.last_token_at - story.first_token_at
    later = story.completion_tokens - 1
    if seconds > 0 and later > 0:
        said += f" at {_figure(later / seconds)} tok/s"
    return said


def _gap(story: Story) -> str:
    gap = story.gap
    if gap is None or gap.seconds < GAP_WORTH_A_WORD_S or not _is_unusual(story, gap):
        return ""
    said = f"the slowest gap was {duration_text(gap.seconds)}"
    if gap.lost_slot:
        return f"{said} while it had no slot"
    if gap.prompts_beside > 0:
        beside = _count(gap.prompts_beside, "prompt")
        verb = "was" if gap.prompts_beside == 1 else "were"
        tokens = _count(gap.prompt_tokens_beside, "token")
        return f"{said} while {beside} ({tokens}) {verb} prefilled beside it"
    if gap.batch_size > 1:
        return f"{said} in a batch of {gap.batch_size}"
    return said


def _is_unusual(story: Story, gap: Gap) -> bool:
    first_at, last_at = story.first_token_at, story.last_token_at
    later = story.completion_tokens - story.completions
    if first_at is None or last_at is None or later <= 1:
        return False
    return gap.seconds >= GAP_FACTOR * story.completions * (last_at - first_at) / later


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _figure(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"


def _class(priority: Priority) -> str:
    return priority.name.lower()
