"""`jitney chat`: a conversation in the terminal. Main thread.

Answers go to standard output, everything else to standard error, so that pipes work on both sides.

Tests: tests/e2e/test_cli.py.
"""

import sys
from contextlib import suppress

from jitney.api.llm import LLM
from jitney.api.outputs import RequestOutput
from jitney.cli.failures import sentence_of
from jitney.cli.opening import has_template, model_title, open_llm
from jitney.cli.result_lines import engine_lines, turn_line
from jitney.cli.sampling import choose_temperature
from jitney.cli.terminal import AnswerWriter, Wrapper, columns
from jitney.cli.verbs import ChatOptions
from jitney.config import Resolved
from jitney.core import limits
from jitney.core.params import SamplingParams
from jitney.engine.handle import Handle
from jitney.errors import (
    ContextLengthExceeded,
    EngineError,
    InvalidRequest,
    JitneyError,
    ModelError,
)
from jitney.text.printable import printable

try:
    # This import gives `input` line editing. Some Pythons do not have it.
    import readline
except ImportError:
    EDITS = False
else:
    EDITS = True
    readline.set_auto_history(True)

LINE_BYTES_MAX = 4 * limits.PROMPT_CHARACTERS_MAX
PROMPT = "\x01\x1b[1;36m\x02> \x01\x1b[0m\x02"
"""Bold and coloured; the control characters show readline which parts have no width."""

PLAIN_PROMPT = "> "

STOP_S_MAX = 30.0
"""How long a stopped answer may take to end: a forward pass cannot be interrupted."""

HELP = (
    "/reset        forget the conversation and begin again",
    "/system TEXT  set the system message; without a text, show it",
    "/stats        the engine's statistics so far",
    "/help         this list",
    "/quit         leave; so does Ctrl-D, or Ctrl-C twice",
    "Ctrl-C        stop an answer",
)


def call(options: ChatOptions, resolved: Resolved) -> None:
    """Run the command."""
    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=choose_temperature(options.temperature, options.greedy),
    )
    with open_llm(resolved) as llm:
        if not has_template(llm):
            raise ModelError(
                "The model has no chat template, so it cannot chat; use jitney run --raw."
            )
        # A second Ctrl-C may come while the first is handled.
        with suppress(KeyboardInterrupt):
            Chat(llm, params, options.system).run()


def read_line(*, is_terminal: bool) -> str | None:
    """The next line, typed or from a pipe; None at the end. Raises InvalidRequest.

    A typed line has editing and history, and Ctrl-C raises KeyboardInterrupt.
    """
    try:
        if is_terminal:
            return _read_typed()
        content = sys.stdin.buffer.readline(LINE_BYTES_MAX + 1)
        if len(content) > LINE_BYTES_MAX:
            raise InvalidRequest("A line of standard input is too long.", "prompt")
        return content.decode("utf-8") or None
    except UnicodeDecodeError:
        raise InvalidRequest("Standard input is not text in UTF-8.", "prompt") from None


def _read_typed() -> str | None:
    try:
        return input(PROMPT if EDITS else PLAIN_PROMPT)
    except (EOFError, KeyboardInterrupt) as end:
        sys.stdout.write("\n")
        if isinstance(end, KeyboardInterrupt):
            raise
        return None


class Chat:
    """Reads lines and answers them until there are no more."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._system = system
        self._turns: list[dict[str, str]] = []
        self._context_max = llm.engine.settings.model_len_max
        self._is_terminal = sys.stdin.isatty() and sys.stdout.isatty()

    def run(self) -> None:
        """Run until the end of the input, /quit, or Ctrl-C twice at the prompt."""
        if self._is_terminal:
            name = model_title(self._llm.settings)
            note(f"{name}, context {self._context_max:,} tokens. /help lists what can be typed.")
        was_interrupted = False
        while True:
            try:
                line = read_line(is_terminal=self._is_terminal)
                was_interrupted = False
                if line is None or line.strip() in ("/quit", "/exit"):
                    return
                self._take(line.strip())
            except KeyboardInterrupt:
                if was_interrupted:
                    return
                was_interrupted = True
                note("Ctrl-C again leaves, and so do Ctrl-D and /quit.")

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        match word:
            case "":
                return
            case _ if not line.startswith("/"):
                self._answer(line)
            case "/reset":
                self._turns.clear()
                note("The conversation begins again.")
            case "/system":
                self._set_system(rest.strip())
            case "/stats":
                note(*engine_lines(self._llm.stats()))
            case "/help":
                note(*HELP)
            case _:
                note(f"There is no command {word}; /help lists all commands.")

    def _set_system(self, text: str) -> None:
        if text:
            self._system = text
            note("The system message is set; the conversation so far is kept.")
            return
        system = self._system
        note(f"System message: {system}" if system else "There is no system message.")

    def _answer(self, question: str) -> None:
        system = [{"role": "system", "content": self._system}] if self._system else []
        turn = {"role": "user", "content": question}
        try:
            prompt = self._llm.chat_prompt([*system, *self._turns, turn])
            handle = self._llm.submit(prompt, self._params)
            answer = self._stream(handle)
        except ContextLengthExceeded:
            note(
                f"The conversation no longer fits the context of {self._context_max:,} tokens, "
                "so this was not answered: /reset begins again, or write less."
            )
            return
        except EngineError:
            raise
        except JitneyError as error:
            note(sentence_of(error))
            return
        self._turns += [turn, {"role": "assistant", "content": answer.outputs[0].text}]
        self._note_end(answer)

    def _stream(self, handle: Handle[RequestOutput]) -> RequestOutput:
        """Write the answer while it is made. Ctrl-C ends it and keeps the text so far."""
        writer = AnswerWriter()
        written = 0
        with handle:
            try:
                for delta in handle:
                    written += len(delta.text)
                    writer.write(delta.text)
            except KeyboardInterrupt:
                handle.cancel()
            answer = handle.result(STOP_S_MAX)
        writer.write(answer.outputs[0].text[written:])
        writer.end()
        return answer

    def _note_end(self, answer: RequestOutput) -> None:
        note(turn_line(answer, self._context_max))
        metrics, reason = answer.metrics, answer.outputs[0].finish_reason
        if metrics.prompt_tokens + metrics.completion_tokens >= self._context_max:
            note("The context is full and the answer was cut: /reset begins again.")
        elif reason == "length":
            note(f"The answer was cut at {self._params.max_tokens} tokens; see --max-tokens.")
        elif reason == "abort":
            note("Stopped; the answer so far is kept.")
        if self._is_terminal:
            note("")


def note(*lines: str) -> None:
    """Write lines to standard error, dim on a terminal."""
    sys.stdout.flush()
    for line in map(printable, lines):
        if sys.stderr.isatty() and line:
            wrapper = Wrapper(columns())
            line = f"\x1b[2m{wrapper.feed(line)}{wrapper.end()}\x1b[0m"
        sys.stderr.write(line + "\n")
    sys.stderr.flush()
