"""`jitney run`: answers prompts, several of them together. Main thread.

Only answers go to standard output. One prompt streams; several come in their order, each under a
heading; on a terminal a few are watched side by side first.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console

from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.api.prompts import Prompt
from jitney.cli.asking import Asked, ask_all
from jitney.cli.ending import tells_of_end
from jitney.cli.failures import FAILED, say, sentence_of
from jitney.cli.flags import Given
from jitney.cli.opening import has_template, make_prompt, opened
from jitney.cli.prompt_sources import read_prompts
from jitney.cli.result_lines import answer_line, error_line, run_lines
from jitney.cli.sampling import sampling
from jitney.cli.terminal import Wrapper, columns, printable
from jitney.cli.verbs import RunOptions
from jitney.cli.watch import Question, watch
from jitney.core.params import SamplingParams
from jitney.engine.clock import SystemClock
from jitney.errors import InvalidRequest, JitneyError, ModelError

WATCHED_MAX = 8
HEADING_CHARACTERS = 72


def call(options: RunOptions, given: Given) -> int:
    """Carry out the command; the exit code."""
    texts = read_prompts(
        options.prompts,
        lines=options.lines,
        stream=sys.stdin.buffer,
        is_terminal=sys.stdin.isatty(),
    )
    params = sampling(options)
    clock = SystemClock()
    with tells_of_end(), opened(given) as llm:
        started_at = clock.now()
        prompts = [_prompt(llm, text, options) for text in texts]
        told = _Told(texts)
        if options.json:
            _write_lines(llm, prompts, params, told)
        elif len(texts) == 1:
            _stream(llm, prompts[0], params, told)
        elif sys.stdout.isatty() and len(texts) <= WATCHED_MAX:
            _watch(llm, prompts, params, told)
        else:
            _write_in_order(llm, prompts, params, told)
        if options.stats:
            for line in run_lines(told.answers, llm.stats(), clock.now() - started_at):
                say(line)
    return FAILED if told.failures else 0


@dataclass(slots=True)
class _Told:
    """What has been said so far: answers and failures."""

    texts: list[str]
    answers: list[RequestOutput] = field(default_factory=list)
    failures: int = 0

    def fail(self, index: int, error: JitneyError) -> None:
        """One of several prompts failed; the others go on."""
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
            "--system needs a chat template, and the prompt is handed over raw; leave one out."
        )
    return make_prompt(llm, text, chats=chats, system=options.system)


def _stream(llm: LLM, prompt: Prompt, params: SamplingParams, told: _Told) -> None:
    for asked in ask_all(llm, [prompt], params):
        if asked.error is not None:
            raise asked.error
        written = 0
        try:
            for piece in _pieces(asked):
                _write(piece)
                written += len(piece)
        except (JitneyError, KeyboardInterrupt):
            # What follows, our own sentence or the shell's prompt, begins on a line of its own.
            _write("\n" if written else "")
            raise
        _write("\n")
        assert asked.handle is not None, "not refused"
        told.answers.append(asked.handle.result())


def _write_in_order(llm: LLM, prompts: list[Prompt], params: SamplingParams, told: _Told) -> None:
    for asked in ask_all(llm, prompts, params):
        _write(told.heading(asked.index))
        try:
            if asked.error is not None:
                raise asked.error
            for piece in _pieces(asked):
                _write(piece)
            assert asked.handle is not None, "not refused"
            told.answers.append(asked.handle.result())
            _write("\n")
        except JitneyError as error:
            _write("\n")
            told.fail(asked.index, error)


def _write_lines(llm: LLM, prompts: list[Prompt], params: SamplingParams, told: _Told) -> None:
    for asked in ask_all(llm, prompts, params):
        text = told.texts[asked.index]
        try:
            if asked.error is not None:
                raise asked.error
            assert asked.handle is not None, "not refused"
            answer = asked.handle.result()
            told.answers.append(answer)
            _write(answer_line(asked.index, text, answer) + "\n")
        except JitneyError as error:
            _write(error_line(asked.index, text, sentence_of(error)) + "\n")
            told.fail(asked.index, error)


def _watch(llm: LLM, prompts: list[Prompt], params: SamplingParams, told: _Told) -> None:
    questions = [
        Question(text, prompt, params) for text, prompt in zip(told.texts, prompts, strict=True)
    ]
    console = Console(file=sys.stdout, highlight=False)
    watched = watch(llm, questions, console, leaves=False)
    for index, each in enumerate(watched):
        _write(printable(told.heading(index)))
        if each.answer is not None:
            told.answers.append(each.answer)
            wrapper = Wrapper(columns())
            _write(wrapper.feed(printable(each.answer.outputs[0].text)) + wrapper.end() + "\n")
        elif each.error is not None:
            told.fail(index, each.error)


def _pieces(asked: Asked) -> Iterator[str]:
    """The answer as it comes: as it is for a program, wrapped and harmless on a terminal."""
    assert asked.handle is not None, "not refused"
    if not sys.stdout.isatty():
        for delta in asked.handle:
            yield delta.text
        return
    wrapper = Wrapper(columns())
    for delta in asked.handle:
        yield wrapper.feed(printable(delta.text))
    yield wrapper.end()


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
