"""`jitney run`: answers prompts, several of them together. Main thread.

Only answers go to standard output. One prompt streams. Several answers come in order, each under a
heading; on a terminal, up to WATCHED_MAX are first shown side by side.

Tests: tests/e2e/test_cli.py.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from rich.console import Console

from jitney.api.feed import AnswerOrError, run_each
from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput, make_output
from jitney.api.prompts import Prompt
from jitney.cli.failures import FAILED, say, say_at_sigterm, sentence_of
from jitney.cli.opening import has_template, make_prompt, opened
from jitney.cli.prompt_sources import read_prompts
from jitney.cli.result_lines import answer_line, error_line, run_lines
from jitney.cli.sampling import sampling
from jitney.cli.terminal import AnswerWriter, write
from jitney.cli.verbs import RunOptions
from jitney.cli.watch import LivePrompt, watch
from jitney.config import Resolved
from jitney.core.params import SamplingParams
from jitney.core.request import Request
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
        report = _RunReport(texts)
        if len(texts) == 1 and not options.json:
            _stream(llm, prompts[0], params, report)
        elif sys.stdout.isatty() and len(texts) <= WATCHED_MAX and not options.json:
            _watch(llm, prompts, params, report)
        else:
            write_one = _write_json if options.json else _write_text
            _answer_all(llm, prompts, params, partial(write_one, report=report))
        if options.stats:
            for line in run_lines(report.answers, llm.stats(), clock.now() - started_at):
                say(line)
    return FAILED if report.failures else 0


@dataclass(slots=True)
class _RunReport:
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
    llm: LLM,
    prompts: list[Prompt],
    params: SamplingParams,
    write_one: Callable[[int, RequestOutput | JitneyError], None],
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
            known = waiting.pop(following)
            if isinstance(known, JitneyError):
                write_one(following, known)
            else:
                write_one(following, make_output(known, prompts[following].text, vocabulary))
            following += 1

    run_each(llm.engine, requests(), take)


def _write_text(index: int, outcome: RequestOutput | JitneyError, report: _RunReport) -> None:
    heading = report.heading(index)
    write(printable(heading) if sys.stdout.isatty() else heading)
    if isinstance(outcome, JitneyError):
        write("\n")
        report.fail(index, outcome)
        return
    report.answers.append(outcome)
    writer = AnswerWriter()
    writer.write(outcome.outputs[0].text)
    writer.end()


def _write_json(index: int, outcome: RequestOutput | JitneyError, report: _RunReport) -> None:
    text = report.texts[index]
    if isinstance(outcome, JitneyError):
        write(error_line(index, text, sentence_of(outcome)) + "\n")
        report.fail(index, outcome)
        return
    report.answers.append(outcome)
    write(answer_line(index, text, outcome) + "\n")


def _watch(llm: LLM, prompts: list[Prompt], params: SamplingParams, report: _RunReport) -> None:
    watched = [
        LivePrompt(text, prompt, params) for text, prompt in zip(report.texts, prompts, strict=True)
    ]
    watch(llm, watched, Console(file=sys.stdout, highlight=False), leaves=False)
    for index, each in enumerate(watched):
        assert each.outcome is not None, "Every prompt has ended"
        _write_text(index, each.outcome, report)
