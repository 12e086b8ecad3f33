"""`jitney run`: answers prompts, several of them together. Main thread.

Only answers go to standard output. One prompt streams. Several answers come in order, each under a
heading; on a terminal, up to WATCHED_MAX are first shown side by side.

Tests: tests/e2e/test_cli.py.
"""

import sys
from dataclasses import dataclass, field

from rich.console import Console

from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.api.prompts import Prompt
from jitney.cli.asking import ask_all
from jitney.cli.failures import FAILED, say, say_at_sigterm, sentence_of
from jitney.cli.opening import has_template, make_prompt, opened
from jitney.cli.prompt_sources import read_prompts
from jitney.cli.result_lines import answer_line, error_line, run_lines
from jitney.cli.sampling import sampling
from jitney.cli.terminal import AnswerWriter, write
from jitney.cli.verbs import RunOptions
from jitney.cli.watch import Question, watch
from jitney.config import Resolved
from jitney.core.params import SamplingParams
from jitney.engine.clock import SystemClock
from jitney.errors import InvalidRequest, JitneyError, ModelError
from jitney.text.printable import printable

WATCHED_MAX = 8
HEADING_CHARACTERS = 72


def call(options: RunOptions, resolved: Resolved) -> int:
    """Run the command; the exit code."""
    texts = read_prompts(
        options.prompts,
        lines=options.lines,
        stream=sys.stdin.buffer,
        is_terminal=sys.stdin.isatty(),
    )
    params = sampling(options)
    clock = SystemClock()
    with say_at_sigterm(), opened(resolved) as llm:
        started_at = clock.now()
        prompts = [_prompt(llm, text, options) for text in texts]
        report = _Report(texts)
        if options.json:
            _write_lines(llm, prompts, params, report)
        elif len(texts) == 1:
            _stream(llm, prompts[0], params, report)
        elif sys.stdout.isatty() and len(texts) <= WATCHED_MAX:
            _watch(llm, prompts, params, report)
        else:
            _write_in_order(llm, prompts, params, report)
        if options.stats:
            for line in run_lines(report.answers, llm.stats(), clock.now() - started_at):
                say(line)
    return FAILED if report.failures else 0


@dataclass(slots=True)
class _Report:
    """The answers and failures so far."""

    texts: list[str]
    answers: list[RequestOutput] = field(default_factory=list)
    failures: int = 0

    def fail(self, index: int, error: JitneyError) -> None:
        """Report one failed prompt; the others go on."""
        self.failures += 1
        say(f"prompt {index + 1}: {sentence_of(error)}")

    def heading(self, index: int) -> str:
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


def _stream(llm: LLM, prompt: Prompt, params: SamplingParams, report: _Report) -> None:
    for submitted in ask_all(llm, [prompt], params):
        writer = AnswerWriter()
        try:
            for delta in submitted.handle:
                writer.write(delta.text)
        except (JitneyError, KeyboardInterrupt):
            # Our error message or the shell's prompt follows: begin a new line for it.
            writer.break_off()
            raise
        writer.end()
        report.answers.append(submitted.handle.result())


def _write_in_order(
    llm: LLM, prompts: list[Prompt], params: SamplingParams, report: _Report
) -> None:
    for submitted in ask_all(llm, prompts, params):
        write(report.heading(submitted.index))
        writer = AnswerWriter()
        try:
            for delta in submitted.handle:
                writer.write(delta.text)
            report.answers.append(submitted.handle.result())
            writer.end()
        except JitneyError as error:
            write("\n")
            report.fail(submitted.index, error)


def _write_lines(llm: LLM, prompts: list[Prompt], params: SamplingParams, report: _Report) -> None:
    for submitted in ask_all(llm, prompts, params):
        text = report.texts[submitted.index]
        try:
            answer = submitted.handle.result()
            report.answers.append(answer)
            write(answer_line(submitted.index, text, answer) + "\n")
        except JitneyError as error:
            write(error_line(submitted.index, text, sentence_of(error)) + "\n")
            report.fail(submitted.index, error)


def _watch(llm: LLM, prompts: list[Prompt], params: SamplingParams, report: _Report) -> None:
    questions = [
        Question(text, prompt, params) for text, prompt in zip(report.texts, prompts, strict=True)
    ]
    console = Console(file=sys.stdout, highlight=False)
    watched = watch(llm, questions, console, leaves=False)
    for index, each in enumerate(watched):
        write(printable(report.heading(index)))
        if each.answer is not None:
            report.answers.append(each.answer)
            writer = AnswerWriter()
            writer.write(each.answer.outputs[0].text)
            writer.end()
        elif each.error is not None:
            report.fail(index, each.error)
