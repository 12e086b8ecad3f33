"""What may be said of a request in Python: its priority in every spelling, and an id of its own."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from jitney import LLM, Priority, SamplingParams
from jitney.api.submission import ID_PREFIX
from jitney.core.request import read_priority
from jitney.errors import InvalidRequest
from jitney.records import Record, RequestAccepted

WAIT_S = 100.0
SHORT = SamplingParams(temperature=0.0, max_tokens=4)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(backend="fake", policy="priority") as llm:
        yield llm


@pytest.fixture
def priorities(llm: LLM) -> list[Priority]:
    """Those of the requests that the engine accepted, in order."""
    seen: list[Priority] = []

    def observe(record: Record) -> None:
        if isinstance(record, RequestAccepted):
            seen.append(record.priority)

    llm.engine.observe(observe)
    return seen


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("low", Priority.LOW),
        ("Normal", Priority.NORMAL),
        ("HIGH", Priority.HIGH),
        (Priority.CRITICAL, Priority.CRITICAL),
        (0, Priority.LOW),
        (3, Priority.CRITICAL),
        (None, Priority.NORMAL),
    ],
)
def test_a_priority_is_a_name_a_class_or_a_number_that_counts_up(
    given: object, meant: Priority
) -> None:
    """Guards the seeds' direction: vLLM's numbers, which HTTP has, count down."""
    assert read_priority(given) is meant


@pytest.mark.parametrize("given", ["urgent", "", "3", 4, -1, 1.5, True, ["high"], "x" * 1000])
def test_what_is_no_priority_is_refused_in_one_sentence(given: object) -> None:
    """Guards against a class that was meant otherwise: -1 is high over HTTP, and nothing here."""
    sentence = "priority is low, normal, high or critical, or a number from 0 (low) to 3 (critical)"
    with pytest.raises(InvalidRequest, match=re.escape(sentence)) as caught:
        read_priority(given)
    assert caught.value.parameter == "priority"
    assert len(str(caught.value)) < 200


def test_a_priority_reaches_the_engine_from_every_way_in(
    llm: LLM, priorities: list[Priority]
) -> None:
    """Guards against an option that is accepted and ignored."""
    llm.submit("a", SHORT, priority=2).result(WAIT_S)
    llm.generate("a", SHORT, priority="Low")
    llm.generate(["a", "b"], SHORT, priority=[Priority.CRITICAL, 0])
    llm.chat([{"role": "user", "content": "a"}], SHORT, priority=Priority.HIGH)
    llm.generate("a", SHORT)
    assert " ".join(each.name for each in priorities) == "HIGH LOW CRITICAL LOW HIGH NORMAL"


def test_a_list_of_priorities_has_one_for_each_prompt(llm: LLM, priorities: list[Priority]) -> None:
    """Guards against prompts that are left out, and against a start before all is read."""
    with pytest.raises(InvalidRequest, match="priority has 1 entries for 2 prompts"):
        llm.generate(["a", "b"], SHORT, priority=[1])
    with pytest.raises(InvalidRequest, match="got 9"):
        llm.generate(["a", "b"], SHORT, priority=[1, 9])
    assert priorities == []


@pytest.mark.parametrize("given", ["0", "mine", "a b", "für-dich", "x" * 256])
def test_a_request_bears_the_id_that_its_caller_gave(llm: LLM, given: str) -> None:
    """Guards the caller's own accounts; an id is free again after the end."""
    for _ in range(2):
        handle = llm.submit("a", SHORT, request_id=given)
        assert handle.id == given == handle.result(WAIT_S).request_id


def test_ids_that_are_made_are_nobody_elses(llm: LLM) -> None:
    """Guards callers who number their requests: theirs and ours never meet."""
    outputs = [*llm.generate(["a", "b"], SHORT), llm.submit("c", SHORT).result(WAIT_S)]
    ids = [output.request_id for output in outputs]
    assert len(set(ids)) == 3
    assert all(each.startswith(ID_PREFIX) for each in ids)
    with pytest.raises(InvalidRequest, match="choose another"):
        llm.submit("a", SHORT, request_id=ids[0])


@pytest.mark.parametrize("given", ["", "x" * 257, "a\nb", "a\x00", 7, b"mine"])
def test_what_is_no_id_is_refused(llm: LLM, given: Any) -> None:
    """Guards logs and pages, where the id is printed."""
    with pytest.raises(InvalidRequest, match="1 to 256 printable characters"):
        llm.submit("a", SHORT, request_id=given)


def test_a_live_id_is_refused_and_the_first_goes_on() -> None:
    """Guards against two requests that answer to one cancel."""
    with LLM(backend="fake", strategy="dynamic", max_num_seqs=2, max_wait_ms=60_000) as llm:
        first = llm.submit("a", SHORT, request_id="mine")
        with pytest.raises(InvalidRequest, match="'mine' is live already"):
            llm.submit("a", SHORT, request_id="mine")
        llm.submit("b", SHORT, request_id="yours")
        assert first.result(WAIT_S).request_id == "mine"
