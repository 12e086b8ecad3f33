"""What may be said to a section on the command line; each has a default of its own."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """Sizes of a run; None is the section's own, which is that of its goal."""

    seconds: float | None = None
    minutes: float | None = None
    kills: int | None = None
    probes: int | None = None
    backend: str | None = None


def parse(arguments: Sequence[str], sections: Sequence[str]) -> tuple[list[str], Options]:
    """The sections that were named, and the options for them; a mistake ends the program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(sections))
    parser.add_argument("--seconds", type=_positive, help="overload, stalled, starved: how long")
    parser.add_argument("--minutes", type=_positive, help="soak: how long")
    parser.add_argument("--kills", type=int, help="kills: how many")
    parser.add_argument("--probes", type=int, help="tenants: how many of each kind")
    parser.add_argument(
        "--backend",
        choices=("fake", "auto"),
        help="auto is SmolLM2, the default of kills; fake that of overload and tenants",
    )
    given = parser.parse_args(arguments)
    unknown = [name for name in given.sections if name not in sections]
    if unknown:
        parser.error(f"no section {unknown[0]!r}; there are {', '.join(sections)}")
    return given.sections, Options(
        given.seconds, given.minutes, given.kills, given.probes, given.backend
    )


def _positive(text: str) -> float:
    number = float(text)
    if number <= 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return number
