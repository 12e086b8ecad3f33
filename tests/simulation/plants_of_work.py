"""Bugs that let the engine thread read waiting prompts again and again; see `plants.py`."""

from tests.simulation.planting import Table

_CHAIN = "jitney/core/prefix.py"
_MEMORY = "jitney/core/memory.py"

OF_WORK: Table = {
    ("a prompt is compared again in every tick", "work"): [
        (_CHAIN, "if ours[depth - 1] is theirs[depth - 1]:", "if not depth:"),
        (_CHAIN, "bisect_left(range(depth), True, key=lambda at: ours[at] is not theirs[at])", "0"),
    ],
    ("all who wait are compared again with each that starts", "work"): [
        (
            _MEMORY,
            "        is_background = sequence.is_background\n",
            "        is_background, sequence.chain = sequence.is_background, None\n",
        ),
        (
            _CHAIN,
            "= min(ours[at], theirs[at], key=_order)",
            "= max(ours[at], theirs[at], key=_order)",
        ),
    ],
    ("the keys of a prompt are made again in every tick", "work"): [
        (_MEMORY, "if sequence.chain is None:", "if sequence.slot is None:")
    ],
}
