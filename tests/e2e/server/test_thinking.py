"""A model that thinks before it answers, over HTTP: thoughts are free, and the answer obeys."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from benchmarks.schemas import WRITTEN, all_schemas
from jitney.backends.fake.backend import FakeBackend
from jitney.core.backend import Vocabulary
from jitney.core.batch import Batch, Outcome
from jitney.errors import BackendCrashed
from jitney.tokenizers import byte_tokenizer
from tests.e2e.server.conftest import Start
from tests.e2e.server.harness import Running, World, running

BYTES = byte_tokenizer.byte_vocabulary()
OPENING, CLOSING = len(BYTES.pieces), len(BYTES.pieces) + 1
TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message.role + '|>' }}"
    "{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}"
    "{% endif %}{{ message.content + '<|end|>' }}{% endfor %}{{ '<|assistant|>' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% else %}{{ '<think>\\n' }}{% endif %}"
)
SHORTER = [
    {str(ord(each)): 90 - 5 * at for at, each in enumerate(order)}
    for order in ('"}],', '"@:/}],', '"Z}],:')
]
"""Each has strings, objects and numbers end early; some formats want one order, some another."""
SHORT = SHORTER[0]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "minLength": 12}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


def vocabulary() -> Vocabulary:
    """That of the fake backend, with marks of reasoning that are one token each."""
    return Vocabulary(
        pieces=(*BYTES.pieces, b"<think>", b"</think>"),
        control=BYTES.control,
        eos_tokens=BYTES.eos_tokens,
        bos_token=BYTES.bos_token,
        chat_template=TEMPLATE,
    )


@pytest.fixture(scope="module", autouse=True)
def _thinks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jitney.tokenizers.byte_tokenizer.byte_vocabulary", vocabulary)
        yield


@pytest.fixture(scope="module")
def thinker() -> Iterator[Running]:
    """A server whose model thinks."""
    with running(World()) as made:
        yield made


def said(server: Running, **fields: Any) -> dict[str, Any]:
    answer = server.chat("hi", **{"max_tokens": 3000, **fields})
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    return whole


def of_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}


def answer_of(server: Running, schema: Any, number: int) -> dict[str, Any] | None:
    """An answer that ends; None for a schema that cannot be enforced."""
    fields = {"response_format": of_schema(schema), "thinking_token_budget": number % 20}
    for bias in SHORTER:
        answer = server.chat("hi", logit_bias=bias, seed=number, **{"max_tokens": 600, **fields})
        if answer.status_code == 400:
            assert "refused" in answer.text
            return None
        whole: dict[str, Any] = answer.json()
        if whole["choices"][0]["finish_reason"] == "stop":
            return whole
    raise AssertionError(f"no answer ends: {schema}, {whole}")


def test_schemas_hold_after_the_thinking(thinker: Running) -> None:
    """Guards the order of the two: reasoning is what the model likes, content is of the schema.
    `benchmarks.thinking_schemas` asks for 200."""
    written = len(WRITTEN.read_text(encoding="utf-8").splitlines())
    thought, kinds = 0, list[int]()
    for number, schema in enumerate(all_schemas(350)[::7]):
        answer = answer_of(thinker, schema, number)
        if answer is None:
            continue
        # One after another is drawn of ten kinds; those that were written are of none.
        kinds.append((7 * number - written) % 10 if 7 * number >= written else -1)
        message, usage = answer["choices"][0]["message"], answer["usage"]
        jsonschema_rs.validate(schema, json.loads(message["content"]))
        assert usage["completion_tokens_details"]["reasoning_tokens"] <= number % 20 + 1
        thought += "reasoning_content" in message
    assert set(kinds) == {-1, *range(10)}
    assert (len(kinds) >= 49, thought >= 30) == (True, True), (kinds, thought)


def test_a_stream_adds_up_to_the_whole_answer(thinker: Running) -> None:
    """Guards the prepared frames: reasoning and content of a stream are those of the message."""
    fields: dict[str, Any] = {"temperature": 0, "thinking_token_budget": 60, "max_tokens": 120}
    message = said(thinker, **fields)["choices"][0]["message"]
    asked = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **fields}
    lines = thinker.post(
        "/v1/chat/completions", {**asked, "stream_options": {"include_usage": True}}
    ).text.splitlines()
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
    for name in ("reasoning_content", "content"):
        assert "".join(each.get(name) or "" for each in deltas) == message[name]
    assert message["reasoning_content"]
    counted = chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 1 < counted <= 61


def test_thinking_can_be_turned_off(thinker: Running) -> None:
    """Guards `enable_thinking: false`: the constraint holds from the first token."""
    ways: list[dict[str, Any]] = [
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ]
    for fields in ways:
        answer = said(thinker, response_format=of_schema(SCHEMA), **fields)
        message = answer["choices"][0]["message"]
        assert "reasoning_content" not in message
        jsonschema_rs.validate(SCHEMA, json.loads(message["content"]))


def test_what_a_caller_wants_of_the_reasoning(thinker: Running) -> None:
    """Guards the two fields of other servers, and messages that come back with reasoning."""
    fields: dict[str, Any] = {"temperature": 0, "thinking_token_budget": 30, "max_tokens": 60}
    usual = said(thinker, **fields)["choices"][0]["message"]
    hidden = said(thinker, include_reasoning=False, **fields)["choices"][0]["message"]
    assert hidden["content"] == usual["content"]
    assert "reasoning_content" not in hidden
    raw = said(thinker, reasoning_format="none", **fields)["choices"][0]["message"]
    assert "</think>" in raw["content"]
    counts = []
    for name in ("reasoning_content", "reasoning", None):
        extra: dict[str, Any] = {} if name is None else {name: "Because."}
        history: list[dict[str, Any]] = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "yes", **extra},
            {"role": "user", "content": "why"},
        ]
        counts.append(said(thinker, messages=history, **fields)["usage"]["prompt_tokens"])
    assert counts[0] == counts[1] > counts[2]


class Dying:
    """A backend that crashes once so many batches are left."""

    def __init__(self, backend: FakeBackend) -> None:
        self._backend = backend
        self.left = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def execute(self, batch: Batch) -> Outcome:
        self.left -= 1
        if self.left == 0:
            raise BackendCrashed("the backend died.")
        return self._backend.execute(batch)


def test_a_crash_in_mid_thought_or_mid_object_changes_nothing(start: Start) -> None:
    """Guards replays: the constraint is at the same place again, from the tokens alone."""
    fields = {
        "response_format": of_schema(SCHEMA),
        "thinking_token_budget": 30,
        "temperature": 0,
        "logit_bias": SHORT,
    }
    server = start(World(wrap=Dying))
    calm = said(server, **fields)["choices"][0]["message"]
    assert len(calm["reasoning_content"]) > 20
    for at in (3, 12, 30, 36, 42, 50):
        server.backend.left = at
        assert said(server, **fields)["choices"][0]["message"] == calm
        assert server.backend.left < 0, "it did not crash"
