"""From the command line to a loaded model, with a word to the person while it takes its time.

Main thread.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

from jitney.cli.flags import Given, resolved
from jitney.cli.pull import fetch_embedded
from jitney.config import Settings, known_settings
from jitney.llm import LLM
from jitney.prompts import Prompt


@contextmanager
def opened(given: Given) -> Iterator[LLM]:
    """The model, loaded; released in the end. Raises a SetupError that says what to mend."""
    settings = resolved(given).settings
    level = logging.INFO if settings.log_batch_composition else logging.WARNING
    logging.basicConfig(level=level, format="jitney: %(message)s", stream=sys.stderr)
    if settings.model is None and settings.backend != "fake":
        fetch_embedded(settings.cache_dir, announces=True)
    with _loading(settings):
        llm = LLM(**_arguments(settings))
    with llm:
        yield llm


def has_template(llm: LLM) -> bool:
    """Whether the model says how a conversation is written."""
    return llm.engine.backend.vocabulary.chat_template is not None


def make_prompt(llm: LLM, text: str, *, chats: bool, system: str | None = None) -> Prompt:
    """A text as the user's message in the model's chat template, or as it is."""
    if not chats:
        return Prompt(text, None)
    head = [{"role": "system", "content": system}] if system is not None else []
    return llm.chat_prompt([*head, {"role": "user", "content": text}])


@contextmanager
def _loading(settings: Settings) -> Iterator[None]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    name = "the embedded model" if settings.model is None else settings.model.name
    with console.status(f"loading {name}"):
        yield


def _arguments(settings: Settings) -> dict[str, Any]:  # Any: of every setting's type
    """Settings that are resolved already, written so that nothing can stand in for a none."""
    values = {known.name: getattr(settings, known.name) for known in known_settings()}
    return {name: "none" if value is None else value for name, value in values.items()}
