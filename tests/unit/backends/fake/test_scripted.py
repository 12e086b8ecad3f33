"""The fake backend with a script, through the real engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from jitney import LLM, SamplingParams
from jitney.backends.fake.backend import FakeBackend, FakeSettings
from jitney.backends.fake.script import read_script
from jitney.core.batch import Batch, Entry, Open, Sampling
from jitney.core.params import StructuredOutputsParams
from jitney.errors import ConfigError, InvalidRequest

LONG = "A bus comes when it comes. " * 12


def script_at(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / "script.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def llm_of(folder: Path, *lines: dict[str, Any], **settings: Any) -> LLM:
    return LLM(backend="fake", script=script_at(folder, *lines), **settings)


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


@pytest.mark.parametrize("is_process", [False, True])
def test_an_answer_that_a_constraint_forbids_ends_with_a_sentence(
    tmp_path: Path, is_process: bool
) -> None:
    """Guards a script that keeps the schema of a request, and one that breaks it: it got text
    without end that no script has. Too short, too long and other are each told, others go on."""
    bad = ("maybe", "ye", "yes!")
    lines = [{"contains": "good", "text": "yes"}, *({"contains": f"<{x}>", "text": x} for x in bad)]
    with llm_of(tmp_path, *lines, {"text": LONG}, backend_process=is_process) as llm:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
        handles = [llm.submit(llm.chat_prompt([user(f"<{each}>")]), params) for each in bad]
        free = llm.submit(llm.chat_prompt([user("hi")]), SamplingParams(max_tokens=1000))
        (good,) = llm.chat([user("good")], params)
        for handle in handles:
            with pytest.raises(
                InvalidRequest, match="turn 1 of this conversation does not fit what"
            ):
                handle.result()
        assert free.result().outputs[0].text == LONG
    assert good.outputs[0].text == "yes"


def test_a_batch_takes_as_long_as_the_slowest_of_its_answers(tmp_path: Path) -> None:
    """Guards `delay_ms`: each token has it, from the first on, and only while its answer runs."""
    path = script_at(
        *(tmp_path, {"contains": "a", "text": "xy", "delay_ms": 3}),
        *({"contains": "b", "text": "z", "delay_ms": 2}, {"text": "w"}),
    )
    backend = FakeBackend(FakeSettings(script=read_script(path)))
    prompts = [tuple(backend.encode([(text, False)])) for text in "abc"]
    opens = tuple(Open(slot, Sampling(seed=1, prompt_count=1)) for slot in range(3))
    begun = tuple(Entry(slot, 0, prompt, True) for slot, prompt in enumerate(prompts))
    outcomes = [backend.execute(Batch(1, opens, begun))]
    starts = ({0: 1, 1: 1}, {1: 2, 2: 1}, {2: 2})
    for number, each in enumerate(starts, 2):
        spans = [Entry(slot, start, (), True, continues=True) for slot, start in each.items()]
        outcomes.append(backend.execute(Batch(number, (), tuple(spans))))
    assert [each.seconds for each in outcomes] == [0.003, 0.003, 0.002, 0.0]


def test_a_conversation_without_a_line_is_refused_and_others_go_on(tmp_path: Path) -> None:
    """Guards a sentence for the person whose script is too short."""
    with llm_of(tmp_path, {"contains": "here", "text": LONG}) as llm:
        good = llm.submit(llm.chat_prompt([user("here")]), SamplingParams(max_tokens=1000))
        bad = llm.submit(llm.chat_prompt([user("away")]))
        with pytest.raises(InvalidRequest, match=r"no line for answer 1 of .*away<\|im_end"):
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
