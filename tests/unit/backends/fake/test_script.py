"""Scripts: which line answers a prompt, and what is said of a mistake in one."""

import json
from pathlib import Path
from typing import Any

import pytest

from jitney.backends.fake.script import LINES_MAX, SCRIPT_BYTES_MAX, Script, read_script, script_of
from jitney.errors import ConfigError

PROMPT = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
ANSWER = "<|im_start|>assistant\n"
NEXT = "{}<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def script_at(folder: Path, *lines: dict[str, Any]) -> Script:
    path = folder / "script.jsonl"
    path.write_text("\n\n".join(json.dumps(each) for each in lines) + "\n", encoding="utf-8")
    return script_of(read_script(path))


def answer(script: Script, prompt: str) -> str | None:
    tokens = script.answer(script.tokenizer.encode(prompt, special=True)).tokens
    if tokens is None:
        return None
    return b"".join(script.tokenizer.pieces[token] for token in tokens).decode()


def test_the_first_line_that_fits_answers(tmp_path: Path) -> None:
    """Guards the choice by turn, by what is new, and the line for everything else."""
    script = script_at(
        tmp_path,
        {"turn": 1, "contains": "kind", "text": "one"},
        {"turn": 2, "contains": "more", "text": "two"},
        {"turn": 3, "contains": "more", "text": "never: it stood before the last answer"},
        {"contains": "less", "text": "any turn"},
        {"turn": 3, "text": "three"},
    )
    first = PROMPT.format("more") + ANSWER
    second = first + NEXT.format("one", "more")
    third = second + NEXT.format("more", "hm")
    assert [answer(script, each) for each in (first, second, third)] == ["one", "two", "three"]
    assert answer(script, third + NEXT.format("three", "less")) == "any turn"
    assert answer(script, third + NEXT.format("three", "hm")) is None
    assert answer(script, "no chat, but kind") == "one"


def test_thinking_text_and_calls_are_what_a_model_writes(tmp_path: Path) -> None:
    """Guards the form that the parsers of the server read."""
    calls = [{"name": "Read", "arguments": {"path": "é"}}, {"name": "stop"}]
    script = script_at(tmp_path, {"thinking": "Hm.", "text": "I look.", "calls": calls})
    assert answer(script, "") == (
        "<think>\nHm.\n</think>\n\nI look.\n"
        '<tool_call>\n{"name": "Read", "arguments": {"path": "é"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
    )


def test_another_template_has_other_marks(tmp_path: Path) -> None:
    """Guards scripts for other families: their control tokens, their ends, their turns."""
    (tmp_path / "mine.jinja").write_text("[INST]{{ messages[0].content }}[/INST]")
    marks = {
        "template": "mine.jinja",
        "control": ["</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"],
        "end": "</s>",
        "assistant": "[/INST]",
    }
    script = script_at(tmp_path, marks, {"turn": 2, "text": "[TOOL_CALLS][]"})
    vocabulary = script.vocabulary
    assert vocabulary.chat_template == "[INST]{{ messages[0].content }}[/INST]"
    assert [vocabulary.pieces[each] for each in vocabulary.eos_tokens] == [b"</s>"]
    prompt = script.tokenizer.encode("[INST]a[/INST]b</s>[INST]c[/INST]", special=True)
    found = script.answer(prompt)
    assert found.turn == 2
    assert found.tokens is not None
    assert found.tokens[0] in vocabulary.control


def test_a_name_in_a_users_text_is_no_turn(tmp_path: Path) -> None:
    """Guards the count of turns: a user's text never becomes a control token."""
    script = script_at(tmp_path, {"turn": 1, "text": "one"})
    encode = script.tokenizer.encode
    prompt = encode(ANSWER, special=False) + encode(ANSWER, special=True)
    assert script.answer(prompt).turn == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "has no answers"),
        ('{"text": "a"}\n{"text": ', "line 2: Input data was truncated"),
        ('\n{"txt": "a"}', "line 2: Object contains unknown field `txt`"),
        ('{"turn": 0, "text": "a"}', "line 1: Expected `int` >= 1"),
        ('{"turn": 1}', "line 1: give text, thinking or calls"),
        ('{"text": "a", "calls": [{"arguments": {}}]}', "line 1: Object missing required field"),
        ('{"end": "</s>"}\n{"text": "a"}', "line 1: end is '</s>', no name in control"),
        ('{"control": ["<|im_end|>", "<|im_end|>"]}', "line 1: control has a name twice"),
        ('{"template": "none.jinja"}', "none.jinja cannot be read: No such file"),
        ("{}\n" * (LINES_MAX + 1), f"more than {LINES_MAX} lines"),
        ("x" * (SCRIPT_BYTES_MAX + 1), f"more than {SCRIPT_BYTES_MAX} bytes"),
        ("[" * 100_000, "line 1: "),
        ('{"a":' + "[" * 100_000, "line 1: "),
        (
            '{"text": "a"}\n{"end": "</s>"}',
            "line 2: template, control, end, assistant",
        ),
        ('{"text": "a", "delay_ms": 10001}', "line 1: Expected `float` <= 10000"),
        ("\udcff", "is not UTF-8"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence_with_its_line(tmp_path: Path, content: str, reason: str) -> None:
    """Guards the person who writes the file by hand."""
    path = tmp_path / "script.jsonl"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        read_script(path)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mark_of_the_byte_order_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    """Guards files that an editor of Windows wrote."""
    path = tmp_path / "script.jsonl"
    path.write_text('{"text": "a"}', encoding="utf-8-sig")
    assert answer(script_of(read_script(path)), "") == "a"


def test_the_script_of_the_page_is_one(tmp_path: Path) -> None:
    """Guards the example that people copy."""
    page = Path(__file__).parents[4] / "docs" / "agents.md"
    example = page.read_text(encoding="utf-8").split("```json\n")[1].split("```")[0]
    path = tmp_path / "script.jsonl"
    path.write_text(example, encoding="utf-8")
    assert len(script_of(read_script(path)).lines) == 3


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    """Guards the usual mistake, a wrong path."""
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl cannot be read: No such file"):
        read_script(tmp_path / "nowhere.jsonl")
