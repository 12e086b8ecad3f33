"""Explains in words why a request took its time, and lists its phases for a bar.

Pure functions of a story; any thread. Every number in a sentence was recorded; nothing is guessed.
"""

from jitney.core.events import PreemptReason
from jitney.records import MoveReason
from jitney.server.observe.story import Gap, Loss, Story

GAP_SHOWN_S_MIN = 0.05
GAP_FACTOR = 2.0
"""The slowest gap is shown if it is this long and this many times the mean."""

QUEUE_SHOWN_S_MIN = 0.001

_ENDINGS = {
    "stop": "",
    "length": "stopped at its limit of tokens",
    "abort": "was cancelled",
    "deadline": "ran into its time limit",
    "error": "failed",
}
_MOVED = {MoveReason.LOST: "was lost", MoveReason.LEFT: "was stopped"}


def explain(story: Story, now: float) -> str:
    """One or two sentences; `now` is the end so far of a request that still runs."""
    parts = [_reading(story), _queue(story, now)]
    if story.started is not None:
        parts.append(_prefill(story))
        parts += _losses(story)
    parts.append(_moves(story, now))
    if story.started is not None:
        parts.append(_generation(story))
    sentence = ", ".join(filter(None, parts))
    gap = _gap(story)
    if gap:
        sentence += f"; {gap}"
    ending = _ENDINGS.get(story.ending or "", "")
    if ending:
        sentence += f"; it {ending}"
        if story.message:
            sentence += f": {story.message.rstrip('.')}"
    return sentence[:1].upper() + sentence[1:] + "."


def phases(story: Story, now: float) -> list[tuple[str, float, float]]:
    """Its phases in order, each with its start and end in seconds since the arrival.

    They follow each other without gaps, up to the end or to now. Empty ones are left out.
    """
    origin = story.accepted.arrived_at
    ends = [*(at for at, _ in story.phases[1:]), story.until(now)]
    return [
        (kind, start - origin, end - origin)
        for (start, kind), end in zip(story.phases, ends, strict=True)
        if end > start
    ]


def duration_text(seconds: float) -> str:
    """A duration for people: 0.4 ms, 120 ms, 2.4 s, 3 min 20 s."""
    if seconds < 0.001:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 1.0:
        return f"{seconds * 1e3:.0f} ms"
    if seconds < 60.0:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def _reading(story: Story) -> str:
    if story.phases[0][1] != "reading":
        return ""
    seconds = story.accepted.sent_at - story.accepted.arrived_at
    return f"read and tokenised in {duration_text(seconds)}"


def _queue(story: Story, now: float) -> str:
    is_waiting = story.started is None
    until = story.until(now) if story.started is None else story.started.at
    seconds = until - story.accepted.sent_at
    if seconds < QUEUE_SHOWN_S_MIN and not is_waiting:
        return "started at once"
    verb = "queued"
    if is_waiting:
        verb = "never ran: waited" if story.ended_at is not None else "has been waiting"
    text = f"{verb} {duration_text(seconds)}"
    if story.waiting_before:
        return f"{text} behind {_count(story.waiting_before, 'request')}"
    if story.running_before:
        return f"{text} beside {_count(story.running_before, 'running request')}"
    return text


def _prefill(story: Story) -> str:
    if story.prefill_ticks == 0:
        return ""
    tokens = _count(story.prefill_tokens, "token")
    text = f"prefilled in {_count(story.prefill_ticks, 'tick')} ({tokens}"
    if story.cached_tokens:
        text += f", {story.cached_tokens:,} more from the cache"
    return text + ")"


def _losses(story: Story) -> list[str]:
    parts = []
    recomputed = story.recomputed_tokens
    if story.preempted_count:
        others = (None, PreemptReason.PAUSED)
        losses = [loss for loss in story.losses if loss.reason not in others]
        is_background = story.accepted.is_background
        why = "; ".join(dict.fromkeys(_why(loss, is_background) for loss in losses))
        parts.append(f"preempted {_times(story.preempted_count)} ({why}")
        if recomputed and not story.failure_count:
            parts[-1] += f"; recomputed {_count(recomputed, 'token')}"
        parts[-1] += ")"
    if story.paused_count:
        parts.append(f"paused {_times(story.paused_count)} by its caller")
    if story.failure_count:
        parts.append(f"interrupted {_times(story.failure_count)} by a failure of the backend")
        if recomputed:
            parts[-1] += f" (recomputed {_count(recomputed, 'token')})"
    return parts


def _moves(story: Story, now: float) -> str:
    if not story.move_count:
        return ""
    away_s = sum(end - start for kind, start, end in phases(story, now) if kind == "moved")
    reasons = dict.fromkeys(each.reason for each in story.moves)
    why = " and ".join(f"its replica {_MOVED[reason]}" for reason in reasons)
    text = f"moved {_times(story.move_count)} to another replica ({why}; {duration_text(away_s)}"
    return f"{text} without progress)"


def _why(loss: Loss, is_background: bool) -> str:
    match loss.reason:
        case PreemptReason.DISPLACED if is_background:
            return "displaced by a live request"
        case PreemptReason.DISPLACED:
            if loss.by_priority is None:
                return "displaced by a more urgent request"
            return f"displaced by a request of {loss.by_priority.name.lower()} priority"
        case PreemptReason.SAVED:
            return "memory ran out; its own was saved and restored"
        case _:
            return "memory ran out"


def _generation(story: Story) -> str:
    if story.first_token_at is None or story.last_token_at is None:
        return "has no token yet" if story.ended_at is None else "made no token"
    verb = "generated" if story.ended_at is not None else "has generated"
    text = f"{verb} {_count(story.completion_tokens, 'token')}"
    if story.accepted.completions > 1:
        text += f" in {story.accepted.completions} completions"
    seconds = story.last_token_at - story.first_token_at
    later = story.completion_tokens - 1
    if seconds > 0 and later > 0:
        text += f" at {_figure(later / seconds)} tok/s"
    return text


def _gap(story: Story) -> str:
    gap = story.gap
    if gap is None or gap.seconds < GAP_SHOWN_S_MIN or not _is_unusual(story, gap):
        return ""
    text = f"the slowest gap was {duration_text(gap.seconds)}"
    if gap.lost_slot:
        return f"{text} while it had no slot"
    if gap.prompts_beside > 0:
        beside = _count(gap.prompts_beside, "prompt")
        verb = "was" if gap.prompts_beside == 1 else "were"
        tokens = _count(gap.prompt_tokens_beside, "token")
        return f"{text} while {beside} ({tokens}) {verb} prefilled beside it"
    if gap.batch_size > 1:
        return f"{text} in a batch of {gap.batch_size}"
    return text


def _is_unusual(story: Story, gap: Gap) -> bool:
    first_at, last_at = story.first_token_at, story.last_token_at
    completions = story.accepted.completions
    later = story.completion_tokens - completions
    if first_at is None or last_at is None or later <= 1:
        return False
    return gap.seconds >= GAP_FACTOR * completions * (last_at - first_at) / later


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _figure(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:,.0f}"
