"""The two sandboxes that run the chat template of one model.

Any thread. A sandbox renders one chat at a time, and a chat that reaches its time limit takes
seconds. So a caller that waits for the first sandbox longer than a usual chat takes goes on to the
second, which starts then. Every wait has a limit. A chat that reaches a limit fails alone, and the
next chat costs one fork. The processes end with `close`, and with this process.
"""

import contextlib
from typing import Any  # Any: JSON; `jitney.text.template_child` knows its shape

from jitney.core import limits
from jitney.errors import EngineStopped, ModelError, NoRoom, QueueFull
from jitney.sandbox.sandbox import Bounds, Busy, Gone, Sandbox, SandboxError
from jitney.text import template_child


class Renderer:
    """Renders with one template, which `prepare` sets."""

    def __init__(self) -> None:
        self._set_up_input: Any = None
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

    def run(self, task: Any) -> Any:
        """The answer to a task. Raises ModelError, QueueFull or EngineStopped."""
        assert self._set_up_input is not None, "Call prepare before run."
        try:
            for sandbox in self.sandboxes:
                with contextlib.suppress(Busy):
                    return sandbox.run(task)
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


def _bounds(wait_s: float) -> Bounds:
    return Bounds(
        seconds=limits.TEMPLATE_S_MAX,
        memory_bytes=limits.TEMPLATE_BYTES_MAX,
        wait_s=wait_s,
        set_up_s=limits.TEMPLATE_COMPILE_S_MAX,
        set_up_bytes=limits.TEMPLATE_BYTES_MAX,
    )
