"""`jitney demo`: eight prompts answered side by side, live. Main thread.

Tests: tests/e2e/test_cli.py.
"""

import sys

from rich.console import Console

from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.cli.opening import has_template, make_prompt, opened
from jitney.cli.result_lines import run_lines
from jitney.cli.verbs import DemoOptions
from jitney.cli.watch import LivePrompt, watch
from jitney.config import Resolved
from jitney.core.params import SamplingParams
from jitney.engine.clock import SystemClock
from jitney.errors import JitneyError

PROMPTS = (
    ("Why is the sky blue?", "Explain to a curious child why the sky is blue."),
    ("A haiku about rain", "Write a haiku about rain on a tin roof."),
    ("How bread rises", "Explain in a few sentences how yeast makes bread rise."),
    ("Plan a picnic", "Write a short packing list for a picnic with four friends."),
    ("The first bus", "Begin a short story about the first bus of the morning."),
    ("What is gravity?", "What is gravity? Answer in simple words."),
    ("Better mornings", "Give three tips for a calmer morning."),
    ("A letter home", "Write a short letter home from a lighthouse keeper."),
)
ARRIVAL_S = 0.15
"""The time between two prompts, so that one sees them join while others run."""

TEMPERATURE = 0.6
TOP_P = 0.9
REPETITION_PENALTY = 1.1


def call(options: DemoOptions, resolved: Resolved) -> None:
    """Run the command."""
    console = Console(file=sys.stdout, highlight=False)
    with opened(resolved) as llm:
        clock = SystemClock()
        started_at = clock.now()
        watched = _prompts(llm, options)
        watch(llm, watched, console, leaves=True)
        answers = [each.outcome for each in watched if isinstance(each.outcome, RequestOutput)]
        figures = run_lines(answers, llm.stats(), clock.now() - started_at)[:2]
    if not console.is_terminal:
        sys.stdout.write(plain_text(watched))
    sys.stdout.write(", ".join(figures) + ".\n")
    for each in watched:
        if isinstance(each.outcome, JitneyError):
            raise each.outcome


def plain_text(watched: list[LivePrompt]) -> str:
    """All answers as plain text."""
    parts = [f"== {each.pane.title} ==\n{each.pane.text.strip()}\n" for each in watched]
    return "\n".join(parts) + "\n"


def _prompts(llm: LLM, options: DemoOptions) -> list[LivePrompt]:
    chats = has_template(llm)
    return [
        LivePrompt(
            title,
            make_prompt(llm, text, chats=chats),
            SamplingParams(
                max_tokens=options.max_tokens,
                temperature=TEMPERATURE,
                top_p=TOP_P,
                repetition_penalty=REPETITION_PENALTY,
                seed=number if llm.settings.seed is None else None,
            ),
            wait_s=number * ARRIVAL_S,
        )
        for number, (title, text) in enumerate(PROMPTS)
    ]
