"""`jitney run` and `jitney demo`: answer prompts, several of them together. Main thread.

Of `jitney run`, only answers go to standard output. One prompt streams. Several answers come in
order, each under a heading; on a terminal, up to WATCHED_MAX are first shown side by side. The demo
has eight prompts of its own, and shows them live.

Tests: tests/e2e/test_cli.py.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console

from jitney.api.feed import AnswerOrError, run_each
from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput, make_output
from jitney.api.prompts import Prompt
from jitney.cli.board import Pane
from jitney.cli.failures import FAILED, say, say_at_sigterm, sentence_of
from jitney.cli.opening import has_template, make_prompt, open_llm
from jitney.cli.prompt_sources import read_prompts
from jitney.cli.result_lines import answer_line, error_line, run_lines
from jitney.cli.sampling import sampling
from jitney.cli.terminal import AnswerWriter, write
from jitney.cli.verbs import DemoOptions, RunOptions
from jitney.cli.watch import LivePrompt, watch
from jitney.config import Resolved
from jitney.core.params import SamplingParams
from jitney.core.request import Request
from jitney.engine.clock import SystemClock
from jitney.errors import InvalidRequest, JitneyError, ModelError
from jitney.text.printable import printable

WATCHED_MAX = 8
HEADING_CHARACTERS = 72

DEMO_PROMPTS = (
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

DEMO_TEMPERATURE = 0.6
DEMO_TOP_P = 0.9
DEMO_REPETITION_PENALTY = 1.1


def call(options: RunOptions, resolved: Resolved) -> int:
    """Run `jitney run`; the exit code."""
    texts = read_prompts(
        options.prompts,
        lines=options.lines,
        stream=sys.stdin.buffer,
        is_terminal=sys.stdin.isatty(),
    )
    params = sampling(options)
    clock = SystemClock()
    streams = len(texts) == 1 and not options.json
    watches = sys.stdout.isatty() and len(texts) <= WATCHED_MAX and not options.json
    with say_at_sigterm(), open_llm(resolved, gathers=not (streams or watches)) as llm:
        started_at = clock.now()
        prompts = [_prompt(llm, text, options) for text in texts]
        report = _RunReport(texts, is_json=options.json)
        if streams:
            _stream(llm, prompts[0], params, report)
        elif watches:
            _watch(llm, prompts, params, report)
        else:
            _answer_all(llm, prompts, params, report)
        if options.stats:
            for line in run_lines(report.answers, llm.stats(), clock.now() - started_at):
                say(line)
    return FAILED if report.failures else 0


@dataclass(slots=True)
class _RunReport:
    """The answers and failures so far."""

    texts: list[str]
    is_json: bool
    answers: list[RequestOutput] = field(default_factory=list)
    failures: int = 0

    def add(self, index: int, outcome: RequestOutput | JitneyError) -> None:
        """Write the answer to one prompt, or say that it failed; the others go on."""
        text = self.texts[index]
        if not self.is_json:
            heading = self._heading(index)
            write(printable(heading) if sys.stdout.isatty() else heading)
        if isinstance(outcome, JitneyError):
            sentence = sentence_of(outcome)
            write((error_line(index, text, sentence) if self.is_json else "") + "\n")
            self.failures += 1
            say(f"prompt {index + 1}: {sentence}")
            return
        self.answers.append(outcome)
        if self.is_json:
            write(answer_line(index, text, outcome) + "\n")
            return
        writer = AnswerWriter()
        writer.write(outcome.outputs[0].text)
        writer.end()

    def _heading(self, index: int) -> str:
        """The line above an answer."""
        line = " ".join(self.texts[index].split())
        if len(line) > HEADING_CHARACTERS:
            line = line[: HEADING_CHARACTERS - 1].rstrip() + "…"
        gap = "\n" if index else ""
        return f"{gap}[{index + 1}] {line}\n"


def _prompt(llm: LLM, text: str, options: RunOptions) -> Prompt:
    chats = has_template(llm) if options.chat is None else options.chat
    if chats and not has_template(llm):
        raise ModelError("The model has no chat template; leave --chat out, or use --raw.")
    if options.system is not None and not chats:
        raise InvalidRequest(
            "--system needs a chat template, and the prompt is used as it is; leave one out."
        )
    return make_prompt(llm, text, chats=chats, system=options.system)


def _stream(llm: LLM, prompt: Prompt, params: SamplingParams, report: _RunReport) -> None:
    writer = AnswerWriter()
    with llm.submit(prompt, params) as handle:
        try:
            for delta in handle:
                writer.write(delta.text)
        except (JitneyError, KeyboardInterrupt):
            # Our error message or the shell's prompt follows: begin a new line for it.
            writer.break_off()
            raise
        writer.end()
        report.answers.append(handle.result())


def _answer_all(
    llm: LLM, prompts: list[Prompt], params: SamplingParams, report: _RunReport
) -> None:
    """Write each answer in the order of the prompts, as soon as those before it are written."""
    waiting: dict[int, AnswerOrError] = {}
    vocabulary = llm.engine.backend.vocabulary
    following = 0

    def requests() -> Iterator[Request | JitneyError]:
        for prompt in prompts:
            try:
                yield llm.make_request(prompt, params, {})
            except JitneyError as error:
                yield error

    def take(place: int, outcome: AnswerOrError) -> None:
        nonlocal following
        waiting[place] = outcome
        while following in waiting:
            answer = waiting.pop(following)
            if isinstance(answer, JitneyError):
                report.add(following, answer)
            else:
                report.add(following, make_output(answer, prompts[following].text, vocabulary))
            following += 1

    run_each(llm.engine, requests(), take)


def _watch(llm: LLM, prompts: list[Prompt], params: SamplingParams, report: _RunReport) -> None:
    watched = [
        LivePrompt(Pane(printable(text)), prompt, params)
        for text, prompt in zip(report.texts, prompts, strict=True)
    ]
    try:
        watch(llm, watched, Console(file=sys.stdout, highlight=False), leaves=False)
    finally:
        # After Ctrl-C the board is gone, and what was answered is not.
        for index, each in enumerate(watched):
            if each.outcome is not None:
                report.add(index, each.outcome)


def demo(options: DemoOptions, resolved: Resolved) -> None:
    """Run `jitney demo`."""
    console = Console(file=sys.stdout, highlight=False)
    with open_llm(resolved) as llm:
        clock = SystemClock()
        started_at = clock.now()
        watched = _demo_prompts(llm, options)
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


def _demo_prompts(llm: LLM, options: DemoOptions) -> list[LivePrompt]:
    chats = has_template(llm)
    return [
        LivePrompt(
            Pane(title),
            make_prompt(llm, text, chats=chats),
            SamplingParams(
                max_tokens=options.max_tokens,
                temperature=DEMO_TEMPERATURE,
                top_p=DEMO_TOP_P,
                repetition_penalty=DEMO_REPETITION_PENALTY,
                seed=number if llm.settings.seed is None else None,
            ),
            wait_s=number * ARRIVAL_S,
        )
        for number, (title, text) in enumerate(DEMO_PROMPTS)
    ]
