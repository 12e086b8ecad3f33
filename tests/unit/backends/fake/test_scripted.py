"""The fake backend with a script, through the real engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from jitney import LLM, SamplingParams
from jitney.core.params import StructuredOutputsParams
from jitney.errors import ConfigError, InvalidRequest

LONG = "A bus comes when it comes. " * 12


def llm_of(folder: Path, *lines: dict[str, Any], **settings: Any) -> LLM:
    path = folder / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return LLM(backend="fake", script=path, **settings)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16, "prefill_chunk": 7},
        {"kv_tokens": 800, "saved_limit": 0},
        {"kv_tokens": 800},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_the_text_is_the_scripts_whatever_runs_beside_it(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Guards batches, chunks, preemption, restored memory and shared prefixes."""
    lines = [{"contains": f"user {number}.", "text": f"{number}: {LONG}"} for number in range(6)]
    params = SamplingParams(max_tokens=1000, temperature=1.3, frequency_penalty=2.0)
    with llm_of(tmp_path, *lines, **settings) as llm:
        chats = [[user(f"{LONG} user {number}.")] for number in range(6)]
        outputs = llm.chat(chats, params)
        was_full = llm.stats().preemption_count > 0
    assert [each.outputs[0].text for each in outputs] == [line["text"] for line in lines]
    assert was_full == ("kv_tokens" in settings)


def test_several_answers_of_one_request_are_equal(tmp_path: Path) -> None:
    """Guards slots that are copies of another one."""
    with llm_of(tmp_path, {"text": LONG}) as llm:
        (output,) = llm.chat([user("hi")], SamplingParams(n=4, max_tokens=1000))
    assert {each.text for each in output.outputs} == {LONG}


def test_a_constraint_is_obeyed(tmp_path: Path) -> None:
    """Guards a script that breaks the schema of a request, and one that keeps it."""
    with llm_of(tmp_path, {"contains": "good", "text": "yes"}, {"text": "maybe"}) as llm:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
        outputs = llm.chat([[user("good")], [user("bad")]], params)
    assert outputs[0].outputs[0].text == "yes"
    assert outputs[1].outputs[0].text in {"yes", "no"}


def test_a_conversation_without_a_line_is_refused_and_others_go_on(tmp_path: Path) -> None:
    """Guards a sentence for the person whose script is too short."""
    with llm_of(tmp_path, {"contains": "here", "text": LONG}) as llm:
        good = llm.submit(llm.chat_prompt([user("here")]), SamplingParams(max_tokens=1000))
        bad = llm.submit(llm.chat_prompt([user("away")]))
        with pytest.raises(InvalidRequest, match="no line for answer 1 of this conversation"):
            bad.result()
        assert good.result().outputs[0].text == LONG


def test_the_text_survives_its_process(tmp_path: Path) -> None:
    """Guards the way of a script into the process of the backend."""
    with llm_of(tmp_path, {"text": LONG}, backend_process=True) as llm:
        (path,) = tmp_path.iterdir()
        path.write_text("", encoding="utf-8")
        (output,) = llm.chat([user("hi")], SamplingParams(max_tokens=1000))
    assert output.outputs[0].text == LONG


def test_only_the_fake_backend_has_scripts(tmp_path: Path) -> None:
    """Guards a script that is given and has no effect."""
    with pytest.raises(ConfigError, match="script is given, and the llamacpp backend"):
        LLM(backend="llamacpp", script=tmp_path / "script.jsonl")
