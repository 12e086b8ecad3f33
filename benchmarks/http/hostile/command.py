"""`python -m benchmarks.http hostile`: a calm caller beside every attack of a list.

    hostile                        every usual attack, against the fake backend at a steady pace
    hostile --list                 what there is
    hostile --only NAME ...        some of them
    hostile --backend auto         against the embedded model; other flags are those of jitney serve
    hostile --tries 2              on a busy machine: what was too much is done once more
    hostile --json                 one JSON object instead of a table

Starts a server for each setup that attacks want, and a new one after each attack that was too
much, so that the next one finds all well. The exit status is 1 when one attack was too much.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import replace

from benchmarks.http.hostile.attack import Attack, Setup
from benchmarks.http.hostile.judge import OK, OVER, Row, run_beside, skipped
from benchmarks.http.hostile.registry import ATTACKS, chosen
from benchmarks.http.hostile.table import HEAD, NOTES, calm_line, line, machine_line
from benchmarks.http.hostile.watched import CALM_S, Watched, watched
from benchmarks.http.served import allow_files, missing_here
from benchmarks.http.wire import Json

NOT_HERE = 2
FAKE_FLAGS = ("--max-model-len", "12000", "--kv-tokens", "262144")
"""Room for prompts of 8,000 tokens, forty at once."""

OTHER_FLAGS = ("--max-model-len", "8192", "--kv-tokens", "32768")


class Runner:
    """One server at a time, of the setup that is wanted."""

    def __init__(
        self, flags: tuple[str, ...], say: Callable[[str], None], calm_s: float = CALM_S
    ) -> None:
        self.calm: list[dict[str, Json]] = []
        self._flags, self._say, self._calm_s = flags, say, calm_s
        self._stack = contextlib.ExitStack()
        self._server: Watched | None = None
        self._setup: Setup | None = None

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs."""
        self._server = None
        self._stack.close()

    def run(self, attack: Attack, seconds: float | None = None) -> Row:
        """Do one attack and judge it; a server that was hurt is not used again."""
        reason = attack.missing()
        if reason is not None:
            return skipped(attack, reason)
        if self._server is None or self._setup != attack.setup:
            self.close()
            self._server = self._stack.enter_context(
                watched(attack.setup, self._flags, self._calm_s)
            )
            self._setup = attack.setup
            self.calm.append(self._server.calm)
            self._say(calm_line(self._server.calm))
        row = run_beside(self._server, attack, attack.seconds if seconds is None else seconds)
        if row.verdict != OK:
            self.close()
        return row


def main(arguments: list[str]) -> int:
    """Carry out the command; the exit status."""
    given, flags = _parser().parse_known_args(arguments)
    if given.list:
        for attack in ATTACKS:
            print(f"{attack.name:<24} {'key   ' if attack.needs_key else 'no key'} {attack.text}")
        return 0
    missing = missing_here()
    if missing is not None:
        print(missing)
        return NOT_HERE
    try:
        attacks = chosen(given.only)
    except LookupError as error:
        print(error.args[0])
        return NOT_HERE
    allow_files()
    own = FAKE_FLAGS if given.backend == "fake" else OTHER_FLAGS
    say = _quiet if given.json else _say
    for text in (*NOTES, machine_line(), "", HEAD):
        say(text)
    with Runner(("--backend", given.backend, *own, *flags), say) as runner:
        rows = []
        for attack in attacks:
            rows.append(_tried(runner, attack, given.seconds, given.tries))
            say(line(rows[-1]))
        if given.json:
            told = {"calm": runner.calm, "attacks": [row.json() for row in rows]}
            print(json.dumps(told))
    over = [row.attack for row in rows if row.verdict == OVER]
    say(f"{len(rows)} attacks, {len(over)} over: {', '.join(over) or 'none'}")
    return int(bool(over))


def _tried(runner: Runner, attack: Attack, seconds: float | None, tries: int) -> Row:
    """The first row that is well, or the last: chance on a busy machine does not repeat itself."""
    number = 1
    while (row := runner.run(attack, seconds)).verdict == OVER and number < tries:
        number += 1
    return replace(row, tries=number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.http hostile", description="A bystander beside every attack."
    )
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these attacks")
    parser.add_argument("--seconds", type=float, help="for each attack, in place of its own")
    parser.add_argument("--tries", type=int, default=1, help="for each that is over; default: 1")
    parser.add_argument("--backend", default="fake", help="as in jitney serve; default: fake")
    parser.add_argument("--json", action="store_true", help="one JSON object, no table")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)


def _quiet(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
