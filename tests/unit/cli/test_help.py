"""Tests of `jitney.cli.help`: the help of every command."""

import re
from pathlib import Path

import pytest

from jitney.cli.flags import Verb, verb_flags
from jitney.cli.help import NAMES_WIDTH, top_help, verb_help
from jitney.cli.verbs import all_verbs
from jitney.config import known_settings
from jitney.config.definitions import flag_name
from jitney.config.foreign_names import FOREIGN_NAMES

ROOT = Path(__file__).parents[3]

VERBS = all_verbs()


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


def test_a_key_on_the_command_line_is_seen_by_others_and_the_help_says_so() -> None:
    """Guards keys: every user of the machine can read the flags of a process."""
    flags = [flag for verb in VERBS for flag in verb_flags(verb) if flag.name == "api_key"]
    assert len(flags) >= 3
    assert all("`ps`" in flag.help for flag in flags), [flag.help for flag in flags]


def test_no_page_shows_a_key_on_the_command_line() -> None:
    """Guards who copies an example: it would put the key where others can read it."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    pages += [each for name in ("deploy", "examples") for each in (ROOT / name).glob("*.*")]
    shown = r"jitney [^\n`]*--api-key(?!-file)"
    found = [page.name for page in pages if re.search(shown, page.read_text(encoding="utf-8"))]
    assert not found
