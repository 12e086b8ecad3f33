"""Planted bugs of what callers and settings ask beside running: groups, pauses, policies."""

from tests.simulation.planting import Table

_SCHEDULER = "jitney/core/scheduler.py"
_BATCH_CHOICE = "jitney/core/batch_choice.py"
_MIX = "jitney/core/rules/mix.py"
_PAUSES = "jitney/core/rules/pauses.py"
_GATE = "jitney/core/rules/gate.py"
_PREEMPTION = "jitney/core/preemption.py"
_REGISTRY = "jitney/core/registry.py"

OF_JOINING: Table = {
    ("a window counts from the newest", "joining"): [
        (
            "jitney/core/rules/queue.py",
            "return next(self._newcomers.ordered(without), None)",
            "return max(self._newcomers.ordered(without), key=lambda s: s.order, default=None)",
        )
    ],
    ("a window keeps out who ran before", "joining"): [
        (_GATE, "return self.is_open or sequence.has_started", "return self.is_open")
    ],
    ("newcomers do not wait for the window", "joining"): [
        (_GATE, "is_enough = newcomers.count >= min", "is_enough = True or min")
    ],
    ("a group departs one short", "joining"): [
        (
            _GATE,
            "if newcomers.count >= enough or starts_now",
            "if newcomers.count >= enough - 1 or starts_now",
        )
    ],
    ("a full group waits for its timer all the same", "joining"): [
        (_GATE, "if newcomers.count >= enough or starts_now", "if starts_now")
    ],
    ("anybody joins a group that has departed", "joining"): [
        (
            _GATE,
            "self._room = min(newcomers.count, max(size, enough))",
            "self._room = 9 * max(size, enough)",
        )
    ],
    ("the minimum of a group is not kept", "joining"): [
        (_GATE, "enough = self._settings.enough(size)", "enough = size")
    ],
    ("the first of a burst leaves alone", "joining"): [
        (_GATE, "return size_within(self", "return 1 or size_within(self")
    ],
    ("answers of a group are not held back", "joining"): [
        (
            _GATE,
            "return bool(self._members) and self._settings.group_answers is GroupAnswers.TOGETHER",
            "return False",
        )
    ],
    ("a group waits for its paused members", "joining"): [
        (_PAUSES, "        self._gate.left(sequence)\n", "")
    ],
}

OF_STEERING: Table = {
    ("a paused request that runs goes on", "steering"): [
        (_REGISTRY, "if self.paused and sequence in self.paused:", "if sequence is None:"),
        (_PREEMPTION, "if not paused:", "if paused or not paused:"),
    ],
    ("a part of a request is paused", "joining"): [
        (
            _PAUSES,
            "        has_room = len(self) + len(new) <= self._count_max\n",
            "        has_room = len(self) < self._count_max\n"
            "        new = new[: self._count_max - len(self)] if has_room else new\n",
        )
    ],
    ("a pause never ends by itself", "joining"): [
        (_SCHEDULER, "            self._registry.paused.end_due(now)\n", "            pass\n")
    ],
    ("a drain leaves the paused where they are", "joining"): [
        (
            _SCHEDULER,
            "        self._registry.paused.end_all(now)\n"
            '        assert not self._registry.paused, "nothing waits for its caller any more"\n',
            "",
        )
    ],
    ("a tick has prefills and decodes under separate", "steering"): [
        (
            _BATCH_CHOICE,
            "if self._settings.mix is not Mix.SEPARATE:\n            yield sequences",
            "if sequences:\n            yield sequences",
        ),
        (_MIX, "case Mix.DECODE_FIRST:", "case Mix.DECODE_FIRST | Mix.SEPARATE:"),
        (
            _MIX,
            "        case Mix.SEPARATE:\n"
            "            return _split_apart(decode_count, prefills, budget)\n",
            "",
        ),
    ],
    ("who is not to be displaced is displaced", "steering"): [
        (
            _PREEMPTION,
            "self.displaces = registry.by_class and settings.enable_preemption",
            "self.displaces = registry.by_class",
        )
    ],
    ("a policy may answer what is no number", "exception"): [
        (
            "jitney/core/rules/ranking.py",
            '        if math.isnan(rank):\n            raise ValueError("NaN is no rank")\n',
            "",
        )
    ],
}
