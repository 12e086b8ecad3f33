"""Planted bugs of work that may wait, and should sit behind."""

from tests.simulation.planting import Table

_BACKGROUND = "jitney/core/rules/background.py"
_ADMISSION = "jitney/core/admission.py"
_BATCH_CHOICE = "jitney/core/batch_choice.py"
_QUEUE = "jitney/core/rules/queue.py"
_PREEMPTION = "jitney/core/preemption.py"

OF_BACKGROUND: Table = {
    ("background work goes on beside a first token that is due", "background"): [
        (
            _BATCH_CHOICE,
            "running[-1].is_background or not self._admission.is_live_awaited:",
            "running[-1].is_background or True:",
        )
    ],
    ("only prompts count as waiting for a first token", "background"): [
        (
            _BACKGROUND,
            "return sequence.wanted_count > 1 or sequence.completion_count + sequence.pending == 0",
            "return sequence.wanted_count > 1",
        )
    ],
    ("background work waits in one line with live work", "background"): [
        (
            _QUEUE,
            "return self.background if sequence.is_background else self.live",
            "return self.live",
        )
    ],
    ("background work passes a live one that waits for a prefix", "background"): [
        (
            _ADMISSION,
            "queue.background.count and not self.is_tick_full and not self.is_live_awaited:",
            "queue.background.count and not self.is_tick_full:",
        )
    ],
    ("background work keeps its slot", "waiting"): [
        (
            _PREEMPTION,
            "victim = choose_for_memory(background_of(running), by_class=False)",
            "victim = None",
        )
    ],
}
