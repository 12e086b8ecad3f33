"""Tests of `jitney.cli.help`: the help of every command."""

import pytest

from jitney.cli.flags import Verb
from jitney.cli.help import NAMES_WIDTH, top_help, verb_help
from jitney.cli.verbs import VERBS
from jitney.config import known_settings
from jitney.config.definitions import flag_name
from jitney.config.foreign_names import FOREIGN_NAMES


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb.path))
def test_every_command_has_an_example_and_says_what_it_does(verb: Verb) -> None:
    """Guards a new command: a first line, an example, and its place in the list."""
    text = verb_help(verb, 80)
    assert verb.about.split("\n")[0] in " ".join(text.split())
    assert f"jitney {' '.join(verb.path)}" in "".join(verb.examples)
    assert all(example in text for example in verb.examples)
    assert "--help" in text
    assert " ".join(verb.path) in top_help(80)


@pytest.mark.parametrize("width", [60, 79, 100])
def test_no_name_is_cut_short_and_no_line_is_too_long(width: int) -> None:
    """Guards narrow terminals: a name that is cut cannot be typed."""
    text = verb_help(VERBS[0], width)
    for known in known_settings():
        assert flag_name(known.name) in text
    long = [line for line in text.splitlines() if len(line) > max(width, NAMES_WIDTH + 24)]
    # Only names and examples, which cannot be broken, stand out.
    assert all(line.startswith(("  -", "  jitney", "  git")) for line in long), long


def test_other_names_are_not_in_the_help() -> None:
    """Guards brevity: names of other systems are understood, and listed in the reference only."""
    words = set(verb_help(VERBS[0], 100).split())
    assert not words & {flag_name(foreign.name) for foreign in FOREIGN_NAMES}
