"""Bounds of the numbers that `jitney bench` and `jitney plan` take.

Tests: tests/unit/lab/cli/test_bench.py, test_bench_serve.py.
"""

from jitney.cli.failures import say
from jitney.errors import ConfigError

RUNS_MAX = 1000
PROMPTS_MAX = 1_000_000
SIZES_MAX = 1024
RATE_MIN = 1e-6
RATE_MAX = 1e6
LENGTH_MAX = 1_000_000
"""Tokens of a prompt or an answer that a flag may ask for."""

ARRIVALS_S_MAX = 3600.0
"""Longer ones are announced before they begin."""


def check(flag: str, value: float | None, low: float, high: float) -> None:
    """Refuse a number outside of its range; None was not given. Raises ConfigError."""
    # Written so that NaN is refused too.
    if value is not None and not low <= value <= high:
        raise ConfigError(f"{flag} is {value:g}; expected a number from {low:g} to {high:g}.")


def read_counts(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them, each once, smallest first."""
    try:
        found = sorted({int(word) for word in text.split(",")})
    except ValueError:
        found = [0]
    if found[0] < 1 or found[-1] > SIZES_MAX:
        raise ConfigError(
            f"{flag} {text} is not a list of numbers from 1 to {SIZES_MAX}; for example 1,4,16."
        )
    return tuple(found)


def announce_arrivals(seconds: float) -> None:
    """Say before a measurement that it will take hours."""
    if seconds > ARRIVALS_S_MAX:
        say(
            f"The last request arrives after {seconds / 3600:,.1f} hours; if that is too long, "
            "send fewer requests or faster."
        )
