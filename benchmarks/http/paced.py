"""`python -m benchmarks.http.paced FACTS serve ...`: jitney with a fake that takes time.

A forward pass of the fake backend then lasts as long as one of a model would, and takes no core:
what is measured is the server, at a rate that is known. The chat template may be another one, as
if it had come with the model. Everything else is `jitney` itself. FACTS is made by `program`.
"""

import json
import sys
from dataclasses import replace
from typing import Any  # Any: what the command line calls them with is its own affair

from jitney.backends.fake import kind
from jitney.cli.main import run
from jitney.loading import compose


def program(
    tick_ms: float, token_us: float, *, template: str | None = None, ends: bool = True
) -> tuple[str, ...]:
    """What to start in place of `jitney`; unless it `ends`, no answer ends before its limit."""
    costs = {"tick_s": tick_ms / 1e3, "token_s": token_us / 1e6, "sleeps": True}
    facts = {"costs": costs if ends else {**costs, "eos_period": 0}, "template": template}
    return ("benchmarks.http.paced", json.dumps(facts))


def main() -> None:
    """Tell the fake what it costs, and be `jitney`."""
    facts = json.loads(sys.argv.pop(1))
    pace(facts["costs"])
    if facts["template"] is not None:
        _use_template(facts["template"])
    run()


def pace(costs: dict[str, Any]) -> None:
    """What the fake backends of this process cost from now on."""
    plain = kind.KIND.values
    # Seconds are no setting of the command line, and pass as they are.
    kind.KIND = replace(
        kind.KIND, values=lambda settings, source: {**plain(settings, source), **costs}
    )


def _use_template(source: str) -> None:
    usual: Any = vars(compose)["ChatTemplate"]
    vars(compose)["ChatTemplate"] = lambda _, *rest, **more: usual(source, *rest, **more)


if __name__ == "__main__":
    main()
