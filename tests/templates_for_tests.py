"""Chat templates that are rendered in this process: for what a template writes, not for limits."""

import json
from typing import Any  # Any: JSON

from jitney.core.backend import Vocabulary
from jitney.text import template_child
from jitney.text.chat_template import ChatTemplate, Renderer


class Here(Renderer):
    """Does what the process does, without it. Nothing bounds the template."""

    def prepare(self, given: Any) -> None:
        """Compile it at once."""
        super().prepare(given)
        self._work = template_child.set_up(json.loads(json.dumps(given)))

    def run_quickly(self, chats: list[Any]) -> list[Any]:
        """Through JSON, as it is on the way to a process and back."""
        found: list[Any] = json.loads(json.dumps(self._work(json.loads(json.dumps(chats)))))
        return found

    def run(self, chat: Any) -> Any:
        """The same for one."""
        return self.run_quickly([chat])[0]


def template_here(source: str, vocabulary: Vocabulary, **options: Any) -> ChatTemplate:
    """A template that needs no closing. Any: what ChatTemplate takes."""
    return ChatTemplate(source, vocabulary, renderer=Here(), **options)
