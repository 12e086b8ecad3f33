"""Chat templates: from messages to the segments of a prompt.

Any thread. Messages are checked here and rendered in a process with limits (`Renderer`). There
`hiding.py` makes sure that a caller's text never becomes a control token. `render` gives segments:
if a caller wrote the name of a control token, that name is a separate segment that is not
special, and is tokenised as plain text.

Tests: tests/unit/text/test_chat_template.py and test_renderer.py.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jitney.core import limits
from jitney.core.backend import Segment, Vocabulary
from jitney.core.request import utf8_bytes
from jitney.errors import EngineStopped, InvalidRequest, JitneyError, ModelError, NoRoom, QueueFull
from jitney.sandbox.sandbox import Bounds, Busy, Gone, Sandbox, SandboxError
from jitney.sandbox.sent_error import SentError
from jitney.text import template_child

_log = logging.getLogger("jitney.text")

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""The allowed roles. Templates build control tokens from roles (`<|user|>`)."""

_DEPTH_MAX = 32
_BITS_MAX = 4096
"""Bits of an integer. Python cannot write much larger ones as JSON."""
_TOOLS = re.compile(r"\btools\b")


class Renderer:
    """Two sandboxes that render with one template, which `prepare` sets.

    A sandbox renders one chat at a time, and a chat that reaches its time limit takes seconds. So a
    caller that waits for the first sandbox longer than a usual chat takes goes on to the second,
    which starts then. Every wait has a limit. A chat that reaches a limit fails alone, and the next
    chat costs one fork. The processes end with `close`, and with this process.
    """

    def __init__(self) -> None:
        self._set_up_input: Any = None  # Any: JSON; `template_child` knows its shape
        self._is_closed = False
        self.sandboxes = tuple(
            Sandbox(template_child.set_up, lambda: self._set_up_input, _bounds(wait_s))
            for wait_s in (limits.TEMPLATE_QUICK_S, limits.TEMPLATE_WAIT_S_MAX)
        )

    def spawn(self) -> None:
        """Start a process before the template is known."""
        # If this fails, it fails again when the process is needed, and is reported then.
        with contextlib.suppress(SandboxError):
            self.sandboxes[0].spawn()

    def prepare(self, set_up_input: Any) -> None:
        """Set the input of `template_child.set_up`. Call it before `run`."""
        self._set_up_input = set_up_input

    def run_quickly(self, chats: list[Any]) -> list[Any]:
        """The answers to ordinary chats, in one message. Raises SandboxError if they take longer
        than such chats do, or if there is another reason to run each of them alone."""
        answers: list[Any] = self.sandboxes[0].run(chats, limits.TEMPLATE_TOGETHER_S)
        return answers

    def run(self, chat: Any) -> Any:
        """The answer to a chat. Raises ModelError, QueueFull or EngineStopped."""
        assert self._set_up_input is not None, "Call prepare before run."
        try:
            for sandbox in self.sandboxes:
                with contextlib.suppress(Busy):
                    return sandbox.run([chat])[0]
        except Gone as error:
            if self._is_closed:
                raise EngineStopped("The engine was closed before the chat was rendered.") from None
            raise NoRoom(
                f"The process for the chat template is not available: {error}; try again when "
                "the machine has more memory or fewer processes."
            ) from None
        except SandboxError as error:
            raise ModelError(
                f"The chat template was stopped: {error}; send fewer or shorter messages, or use "
                "another model file or another template."
            ) from None
        raise QueueFull(
            "The chat template is too slow with the chats before this one; try again in "
            f"{limits.TEMPLATE_S_MAX:g} s.",
            limits.TEMPLATE_S_MAX,
        )

    def close(self) -> None:
        """End the processes and their tasks; idempotent."""
        self._is_closed = True
        for each in self.sandboxes:
            each.close()


@dataclass(frozen=True, slots=True)
class ChatTask:
    """A checked chat, as JSON for the template's process."""

    task: dict[str, Any]


class ChatTemplate:
    """The chat template of one model. `now` gives the date to templates that use it.

    A prompt of more segments than `tokens_max` is refused in the template's process. That process
    starts with `start`, or with the first chat; `close` ends it.
    """

    def __init__(
        self,
        source: str,
        vocabulary: Vocabulary,
        now: Callable[[], datetime] = datetime.now,
        *,
        tokens_max: int = limits.TOKENS_MAX,
        renderer: Renderer | None = None,
    ) -> None:
        self.source = source
        self._now = now
        eos = vocabulary.eos_tokens
        names = {vocabulary.text(token) for token in vocabulary.control}
        self._renderer = renderer or Renderer()
        self._renderer.prepare(
            {
                "source": source,
                "names": sorted(filter(None, names)),
                "tokens_max": tokens_max,
                "values": {
                    "bos_token": vocabulary.text(vocabulary.bos_token) or "",
                    "eos_token": vocabulary.text(eos[0] if eos else None) or "",
                    "documents": None,
                },
            }
        )

    @property
    def knows_tools(self) -> bool:
        """Whether the template uses tools."""
        return _TOOLS.search(self.source) is not None

    def start(self) -> None:
        """Compile the template. Raises ModelError if it is not a valid template."""
        if len(self.source) > limits.TEMPLATE_CHARACTERS_MAX:
            raise ModelError(
                f"The chat template has {len(self.source)} characters; "
                f"the limit is {limits.TEMPLATE_CHARACTERS_MAX}."
            )
        self._segments(self._renderer.run(None))

    def render(self, *arguments: Any, **options: Any) -> tuple[Segment, ...]:
        """The prompt of the chat that `chat` makes of this. Raises what `chat` and `ask` raise."""
        return self.ask(self.chat(*arguments, **options))

    def chat(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool = True,
        *,
        tools: list[dict[str, Any]] | None = None,
        switches: Mapping[str, bool | str] | None = None,
        continue_final_message: bool = False,
    ) -> ChatTask:
        """A chat that can be rendered.

        Tools are untrusted text, as messages are. The template gets `switches` by name; neither
        their names nor their texts may come from a caller. With `continue_final_message` the
        prompt ends with the text of the last message, and the model continues that text.

        Raises InvalidRequest.
        """
        # Any: messages and tools are JSON, and are checked here.
        checked = [_checked(message, index) for index, message in enumerate(_listed(messages))]
        texts = [*_texts(checked, "messages"), *_texts(tools, "tools")]
        count = sum(map(len, texts))
        if count > limits.PROMPT_CHARACTERS_MAX:
            raise _invalid(
                f"messages has {count} characters; the limit is {limits.PROMPT_CHARACTERS_MAX}."
            )
        for text in texts:
            utf8_bytes(text, "messages", "messages")
        if continue_final_message:
            _check_continuable(checked[-1], add_generation_prompt)
        return ChatTask(
            {
                "messages": checked,
                "tools": tools,
                "switches": dict(switches or {}),
                "add_generation_prompt": add_generation_prompt,
                "continues": continue_final_message,
                "now": self._now().isoformat(),
            }
        )

    def ask(self, chat: ChatTask) -> tuple[Segment, ...]:
        """The prompt of a chat, with the beginning-of-text token if the template writes one.

        Raises InvalidRequest if the messages are at fault, ModelError if the template is, and
        QueueFull if other chats take too long.
        """
        return self._segments(self._renderer.run(chat.task))

    def ask_together(self, chats: Sequence[ChatTask]) -> list[tuple[Segment, ...] | JitneyError]:
        """The prompts of ordinary chats, or their errors. Raises SandboxError: ask for each alone
        then."""
        found: list[tuple[Segment, ...] | JitneyError] = []
        for answer in self._renderer.run_quickly([each.task for each in chats]):
            try:
                found.append(self._segments(answer))
            except JitneyError as error:
                found.append(error)
        return found

    def close(self) -> None:
        """End the template's process; idempotent."""
        self._renderer.close()

    def _segments(self, answer: Any) -> tuple[Segment, ...]:
        if isinstance(answer, list):
            return tuple([(text, is_special) for text, is_special in answer])
        if "cause" in answer:
            _log.info("The chat template failed with %s", answer.pop("cause"))
        raise SentError(**answer).error()


def _bounds(wait_s: float) -> Bounds:
    return Bounds(
        seconds=limits.TEMPLATE_S_MAX,
        memory_bytes=limits.TEMPLATE_BYTES_MAX,
        wait_s=wait_s,
        set_up_s=limits.TEMPLATE_COMPILE_S_MAX,
        set_up_bytes=limits.TEMPLATE_BYTES_MAX,
    )


def _invalid(message: str, field: str = "messages") -> InvalidRequest:
    return InvalidRequest(message, field)


def _listed(messages: object) -> list[object]:
    if not isinstance(messages, list) or not messages:
        raise _invalid("messages must be a list of at least one message.")
    return messages


def _checked(message: object, index: int) -> dict[str, Any]:
    """The message with its content as one string; each text part begins a line."""
    where = f"messages[{index}]"
    if not isinstance(message, dict) or not all(isinstance(key, str) for key in message):
        raise _invalid(f"{where} must be an object with a role and a content.")
    role = message.get("role")
    if role not in ROLES:
        raise _invalid(f"{where}.role must be one of {', '.join(ROLES)}.")
    content = message.get("content")
    if content is None and role == "assistant" and message.get("tool_calls"):
        return message
    return {**message, "content": _content(content, where)}


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _invalid(f"{where}.content must be a string or a list of text parts.")
    parts: list[str] = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise _invalid(f'{where}.content may hold parts of type "text" only, each with a text.')
        parts.append(text)
    return "\n".join(parts)


def _texts(value: object, field: str, depth: int = 0) -> Iterator[str]:
    """Every string in this field, including the keys of objects. Checks all other values."""
    if depth > _DEPTH_MAX:
        raise _invalid(f"{field} is nested more than {_DEPTH_MAX} deep.", field)
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                raise _invalid(f"{field} contains an object whose key is not a string.", field)
            yield key
            yield from _texts(part, field, depth + 1)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, field, depth + 1)
    else:
        _check_plain(value, field)


def _check_plain(value: object, field: str) -> None:
    if isinstance(value, int) and value.bit_length() > _BITS_MAX:
        raise _invalid(f"{field} contains a number of more than {_BITS_MAX} bits.", field)
    if value is not None and not isinstance(value, int | float):
        name = type(value).__name__
        raise _invalid(f"{field} contains a {name}, which is not a JSON value.", field)


def _check_continuable(last: dict[str, Any], add_generation_prompt: bool) -> None:
    if add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt cannot both be true: either the last "
            "message continues or a new one begins; set one of them to false.",
            "continue_final_message",
        )
    if last.get("tool_calls"):
        raise InvalidRequest(
            "continue_final_message: the last message calls tools, and only text can be continued.",
            "continue_final_message",
        )
