"""What a section has to say: lines for people, figures for programs, and goals that were missed."""

from dataclasses import dataclass, field

from benchmarks.http.options import Options

Figure = int | float | str | list[float] | dict[str, float]


@dataclass(slots=True)
class Report:
    """The words of one section, and what was asked of it."""

    options: Options = field(default_factory=Options)
    figures: dict[str, Figure] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        """A line for people."""
        print("   ", text, flush=True)

    def figure(self, name: str, value: Figure) -> None:
        """A number for the last line."""
        self.figures[name] = value

    def check(self, goal: str, holds: bool) -> None:
        """A goal, and whether it was reached."""
        self.say(f"{'ok    ' if holds else 'MISSED'} {goal}")
        if not holds:
            self.missed.append(goal)
