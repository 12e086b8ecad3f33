"""Anthropic's own client, of Messages and their batches."""

import json
import time
from typing import Any

import anthropic
import checks
from checks import CITY_MESSAGES, CITY_TOOL, ENDLESS_TOKENS, MESSAGES, MODEL, City

client = anthropic.Anthropic(base_url=checks.URL, api_key=checks.KEY, max_retries=0, timeout=60)
FUNCTION = CITY_TOOL["function"]
TOOL: Any = {
    "name": FUNCTION["name"],
    "description": FUNCTION["description"],
    "input_schema": FUNCTION["parameters"],
}
GREEDY: Any = {"temperature": 0}
"""Of the body; the client has no such argument any more."""
ASKED: Any = {"model": MODEL, "max_tokens": 16, "messages": MESSAGES, "extra_body": GREEDY}
BATCH_S_MAX = 60.0


def chat() -> None:
    reply = client.messages.create(**ASKED)
    assert reply.model == MODEL
    assert reply.stop_reason in ("end_turn", "max_tokens")
    (block,) = reply.content
    assert block.text
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES).input_tokens
    usage = reply.usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens
    assert MODEL in [model.id for model in client.models.list()]
    assert block.text == batched()


def batched() -> str:
    """The same question in a batch, beside one that is wrong; the text of its answer."""
    params: Any = {"model": MODEL, "max_tokens": 16, "messages": MESSAGES, **GREEDY}
    wrong: Any = {**params, "max_tokens": 0}
    requests: Any = [{"custom_id": "a", "params": params}, {"custom_id": "b", "params": wrong}]
    batch = client.messages.batches.create(requests=requests)
    limit = time.monotonic() + BATCH_S_MAX
    while batch.processing_status != "ended":
        assert time.monotonic() < limit, "the batch did not end"
        time.sleep(0.2)
        batch = client.messages.batches.retrieve(batch.id)
    assert (batch.request_counts.succeeded, batch.request_counts.errored) == (1, 1)
    found = {row.custom_id: row.result for row in client.messages.batches.results(batch.id)}
    assert found["b"].error.error.type == "invalid_request_error"
    assert batch.id in [each.id for each in client.messages.batches.list(limit=5)]
    client.messages.batches.delete(batch.id)
    return str(found["a"].message.content[0].text)


def stream() -> None:
    with client.messages.stream(**ASKED) as events:
        texts = list(events.text_stream)
        last = events.get_final_message()
    assert len(texts) > 1
    assert "".join(texts) == last.content[0].text
    assert 0 < last.usage.output_tokens <= 16
    assert last.usage.input_tokens + last.usage.cache_read_input_tokens > 0


def tools() -> None:
    """A loop of two turns, streamed: a call, and an answer to what the tool gave back."""
    asked: Any = {"model": MODEL, "max_tokens": 200, "tools": [TOOL], "extra_body": GREEDY}
    choice = {"type": "tool", "name": TOOL["name"], "disable_parallel_tool_use": True}
    with client.messages.stream(**asked, messages=CITY_MESSAGES, tool_choice=choice) as events:
        reply = events.get_final_message()
    assert reply.stop_reason == "tool_use"
    (call,) = reply.content
    City.model_validate_json(json.dumps(call.input), strict=True)
    result = {"type": "tool_result", "tool_use_id": call.id, "content": json.dumps({"kept": True})}
    history = [
        *CITY_MESSAGES,
        {"role": "assistant", "content": reply.content},
        {"role": "user", "content": [result]},
    ]
    asked |= {"messages": history, "tool_choice": {"type": "none"}, "max_tokens": 8}
    with client.messages.stream(**asked) as events:
        assert "".join(events.text_stream)


def json_schema() -> None:
    reply = client.messages.parse(
        model=MODEL,
        max_tokens=200,
        messages=CITY_MESSAGES,
        output_format=City,
        extra_body=GREEDY,
    )
    assert isinstance(reply.parsed_output, City)


def error() -> None:
    with checks.raises(anthropic.NotFoundError, "not_found_error"):
        client.messages.create(**{**ASKED, "model": "gpt-0"})
    long: Any = [{"role": "user", "content": checks.LONG_QUESTION}]
    with checks.raises(anthropic.BadRequestError, "prompt is too long"):
        client.messages.create(**{**ASKED, "messages": long})
    with checks.raises(anthropic.AuthenticationError, "authentication_error"):
        client.with_options(api_key="wrong").models.list()


def cancel() -> None:
    endless = {**ASKED, "max_tokens": ENDLESS_TOKENS, "tools": [TOOL]}
    with checks.left_early(), client.messages.stream(**endless) as events:
        next(iter(events))


checks.run("anthropic", chat, stream, tools, json_schema, error, cancel)
