"""What the process of a chat template answers, called without the process."""

from typing import Any  # Any: JSON

import pytest

from jitney.text.template_child import set_up


def answer(source: str, task: Any) -> Any:
    values = {"bos_token": None, "eos_token": None}
    return set_up({"source": source, "values": values, "names": [], "tokens_max": 100})([task])[0]


def test_a_task_without_a_chat_only_starts_the_process() -> None:
    assert answer("hello", None) == []


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{% if", "The chat template cannot be read: "),
        ("{{ " + "(" * 300 + ")" * 300 + " }}", "nested too deeply, or cannot be read"),
    ],
)
def test_a_template_that_cannot_be_used_is_the_fault_of_the_model(
    source: str, sentence: str
) -> None:
    """Guards callers: whatever they send, such a template cannot answer."""
    found = answer(source, {"messages": [], "tools": None, "continues": False})
    assert found["kind"] == "ModelError"
    assert sentence in found["text"]
