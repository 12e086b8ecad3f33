"""`python -m benchmarks.http.hostile.paced [TEMPLATE] serve ...`: jitney for a bystander.

The fake backend takes TICK_S for a tick and never ends by itself, so that a calm stream has a
steady pace and leaves the cores free; and the chat template may be one of `templates.TEMPLATES`, as
if it had come with the model. All else is jitney's own command line.
"""

import sys
from typing import Any

from benchmarks.http.hostile.templates import TEMPLATES
from jitney import compose
from jitney.cli.main import run
from jitney.loading import fake

TICK_S = 0.01


def slow_down() -> None:
    """From here on, a fake backend is told to take its time."""
    usual = fake.values

    def values(settings: Any) -> Any:  # Any: as the command line calls it
        return {**usual(settings), "tick_s": TICK_S, "sleeps": True, "eos_period": 0}

    fake.values = values


def use_template(name: str) -> None:
    """From here on, every model comes with this template."""
    usual: Any = vars(compose)["ChatTemplate"]  # Any: its arguments are its own affair

    def template(source: str, *rest: Any, **more: Any) -> Any:
        return usual(TEMPLATES[name], *rest, **more)

    vars(compose)["ChatTemplate"] = template


if __name__ == "__main__":
    slow_down()
    if sys.argv[1] in TEMPLATES:
        use_template(sys.argv.pop(1))
    run()
