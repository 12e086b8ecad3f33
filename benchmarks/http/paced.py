"""`python -m benchmarks.http.paced TICK_MS TOKEN_US serve ...`: jitney with a fake that takes time.

A forward pass of the fake backend then lasts as long as one of a model would, and takes no core:
what is measured is the server, at a rate that is known. Everything else is `jitney` itself.
"""

import sys

from jitney.cli.main import run
from jitney.config import Settings
from jitney.loading import fake
from jitney.loading.common import Values


def program(tick_ms: float, token_us: float) -> tuple[str, ...]:
    """What to start in place of `jitney`."""
    return ("benchmarks.http.paced", str(tick_ms), str(token_us))


def main() -> None:
    """Tell the fake what it costs, and be `jitney`."""
    tick_s, token_s = float(sys.argv.pop(1)) / 1e3, float(sys.argv.pop(1)) / 1e6
    plain = fake.values

    def values(settings: Settings) -> Values:
        # A number of seconds is no setting of the command line, and passes as it is.
        return {**plain(settings), "tick_s": tick_s, "token_s": token_s, "sleeps": True}  # type: ignore[dict-item]

    fake.values = values
    run()


if __name__ == "__main__":
    main()
