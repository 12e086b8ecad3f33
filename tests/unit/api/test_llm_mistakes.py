"""Mistakes that a newcomer makes: one clear sentence each, never a traceback of ours or a hang."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jitney import LLM
from jitney.errors import EngineStopped, InvalidRequest, ModelError


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(backend="fake") as one:
        yield one


@pytest.mark.parametrize("given", [{"max_tokens": 2}, "foo", [{"max_tokens": 2}], 5])
def test_sampling_params_of_another_type_are_refused(llm: LLM, given: Any) -> None:
    """Guards against an AttributeError out of the depths."""
    with pytest.raises(InvalidRequest, match="SamplingParams"):
        llm.generate("a", given)
    with pytest.raises(InvalidRequest, match="SamplingParams"):
        llm.submit("a", given)


@pytest.mark.parametrize("given", ["hello", [1], [[1]], [["hello"]], 5])
def test_messages_of_another_type_are_refused(llm: LLM, given: Any) -> None:
    """Guards the likeliest mistake of all: a plain text for a conversation."""
    with pytest.raises(InvalidRequest):
        llm.chat(given)


@pytest.mark.parametrize("given", [[], [[]], [[{"role": "user", "content": "a"}], []]], ids=str)
def test_a_conversation_without_messages_is_refused(llm: LLM, given: Any) -> None:
    """Guards against an empty result nobody asked for; over HTTP it is refused as well."""
    with pytest.raises(InvalidRequest, match="A conversation is a list of messages"):
        llm.chat(given)


def _ask(llm: LLM, answers: Any) -> None:
    asks: list[Callable[[], object]] = [
        lambda: llm.generate("a"),
        lambda: llm.chat([{"role": "user", "content": "a"}]),
    ]
    for ask in asks:
        try:
            ask()
        except EngineStopped as error:
            answers.send(str(error))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_told_to_make_its_own(llm: LLM) -> None:
    """Guards against a hang for ever: the engine's thread does not come along into a fork."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    child = fork.Process(target=_ask, args=(llm, theirs), daemon=True)
    child.start()
    try:
        for _ in range(2):
            assert ours.poll(100), "the child said nothing"
            assert "another process" in ours.recv()
    finally:
        child.kill()
        child.join(100)


def test_a_pipe_for_a_model_is_refused(tmp_path: Path) -> None:
    """Guards against waiting for ever on a file that never ends."""
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match="not a regular file"):
        LLM(tmp_path / "model.gguf")
