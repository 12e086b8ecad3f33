"""Loads the model that the command line names, and shows that it is being loaded.

Main thread.

Tests: tests/e2e/test_cli_model.py.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from rich.console import Console

from jitney.api.llm import LLM
from jitney.api.prompts import Prompt
from jitney.cli.adding import add_if_missing
from jitney.cli.pull import fetch_model, show_log
from jitney.config import Resolved, Settings
from jitney.loading.model_source import takes_model
from jitney.models import embedded
from jitney.models.hub_reference import reference_of


@contextmanager
def open_llm(resolved: Resolved, *, gathers: bool = False) -> Iterator[LLM]:
    """The loaded model; released at the end. Raises a SetupError that says what to change.

    A caller that `gathers` starts a group that is not full itself, as `run_each` does.
    """
    show_log(every_tick=resolved.settings.log_batch_composition)
    # None becomes the word none, so that no weaker source wins.
    settings: dict[str, Any] = {  # Any: of every setting's type
        name: "none" if value is None else value for name, value in resolved.given().items()
    }
    with loading(resolved.settings):
        llm = LLM(**settings)
    with llm:
        if llm.engine.settings.wait_s is None and not gathers:
            # Only the command sends requests, so a group might never be full.
            llm.engine.end_waits()
        yield llm


def model_title(settings: Settings) -> str:
    """The name of the model for people."""
    if not takes_model(settings):
        return f"the {settings.backend} backend"
    if settings.model is None:
        return embedded.NAME
    return str(reference_of(settings.model) or settings.model.name)


def has_template(llm: LLM) -> bool:
    """Whether the model has a chat template."""
    return llm.engine.backend.vocabulary.chat_template is not None


def make_prompt(llm: LLM, text: str, *, chats: bool, system: str | None = None) -> Prompt:
    """A prompt of a text: in the model's chat template as the user's message, or unchanged."""
    if not chats:
        return Prompt(text, None)
    head = [{"role": "system", "content": system}] if system is not None else []
    return llm.chat_prompt([*head, {"role": "user", "content": text}])


@contextmanager
def loading(settings: Settings, *, yes: bool = False) -> Iterator[None]:
    """Fetch the model before it is loaded. On a terminal, show that it is being loaded.

    A backend that is missing is added, if the user agrees, or said yes before.
    """
    fetch_model(settings, partial(add_if_missing, yes=yes))
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(f"loading {model_title(settings)}"):
        yield
