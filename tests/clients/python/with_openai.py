"""OpenAI's own client, of any major version since 1."""

import asyncio
import json

import checks
import openai
from checks import CITY_MESSAGES, CITY_TOOL, ENDLESS, ENDLESS_TOKENS, MESSAGES, MODEL, City

client = openai.OpenAI(base_url=checks.BASE_URL, api_key=checks.KEY, max_retries=0, timeout=60)


def chat() -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=16, temperature=0, n=2
    )
    assert [each.index for each in reply.choices] == [0, 1]
    for choice in reply.choices:
        assert choice.message.role == "assistant"
        assert choice.message.content
        assert choice.finish_reason in ("stop", "length")
    assert reply.model == MODEL
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert MODEL in [model.id for model in client.models.list()]


def stream() -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = [each.choices[0].delta.content or "" for each in chunks if each.choices]
    assert sum(bool(text) for text in texts) > 1, texts
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")
    assert chunks[-1].usage.completion_tokens <= 16
    pieces = client.completions.create(model=MODEL, prompt="Once", max_tokens=8, stream=True)
    assert "".join(each.choices[0].text for each in pieces)


def tools() -> None:
    asked = {"model": MODEL, "messages": CITY_MESSAGES, "max_tokens": 200, "temperature": 0}
    asked |= {"tools": [CITY_TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    reply = client.chat.completions.create(**asked).choices[0]
    assert reply.finish_reason == "tool_calls"
    (call,) = reply.message.tool_calls
    assert call.function.name == "keep_city"
    City.model_validate_json(call.function.arguments, strict=True)
    with client.chat.completions.stream(**asked) as events:
        streamed = events.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    City.model_validate_json(streamed.message.tool_calls[0].function.arguments, strict=True)
    history = [
        *CITY_MESSAGES,
        reply.message,
        {"role": "tool", "tool_call_id": call.id, "content": json.dumps({"kept": True})},
    ]
    asked |= {"messages": history, "tool_choice": "none", "max_tokens": 8}
    assert client.chat.completions.create(**asked).choices[0].message.tool_calls is None


def json_schema() -> None:
    reply = client.chat.completions.parse(
        model=MODEL,
        messages=CITY_MESSAGES,
        response_format=City,
        max_tokens=200,
        temperature=0,
    )
    assert isinstance(reply.choices[0].message.parsed, City)
    assert reply.choices[0].finish_reason == "stop"


def logprobs() -> None:
    reply = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=6, logprobs=True, top_logprobs=3, temperature=0
    )
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == reply.usage.completion_tokens
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 3
        assert token.token == token.top_logprobs[0].token
    joined = b"".join(bytes(token.bytes) for token in tokens).decode(errors="replace")
    assert joined.startswith(reply.choices[0].message.content)


def error() -> None:
    with checks.raises(openai.NotFoundError, "model_not_found"):
        client.chat.completions.create(model="gpt-0", messages=MESSAGES)
    with checks.raises(openai.BadRequestError, "context_length_exceeded"):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": checks.LONG_QUESTION}]
        )
    with checks.raises(openai.AuthenticationError, "invalid_api_key"):
        client.with_options(api_key="wrong").models.list()


def cancel() -> None:
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": ENDLESS_TOKENS}
    with checks.left_early():
        chunks = client.chat.completions.create(**asked, stream=True, extra_body=ENDLESS)
        next(iter(chunks))
        chunks.close()
    with checks.left_early():
        asyncio.run(give_up(asked))


async def give_up(asked: dict[str, object]) -> None:
    """Cancel a task that waits for a whole reply."""
    async with openai.AsyncOpenAI(base_url=checks.BASE_URL, api_key=checks.KEY) as patient:
        waiting = asyncio.create_task(patient.chat.completions.create(**asked, extra_body=ENDLESS))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()


def responses() -> None:
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 16}
    first = client.responses.create(input=checks.QUESTION, **asked)
    assert first.output_text
    with client.responses.stream(input=checks.QUESTION, **asked) as events:
        found = list(events)
    assert sum(each.type == "response.output_text.delta" for each in found) > 1
    assert found[-1].response.output_text == first.output_text
    assert client.responses.retrieve(first.id).output_text == first.output_text
    (item,) = client.responses.input_items.list(first.id)
    assert item.content[0].text == checks.QUESTION
    again = client.responses.create(input="And why?", previous_response_id=first.id, **asked)
    assert again.usage.input_tokens > first.usage.total_tokens
    asked |= {"max_output_tokens": 200}
    parsed = client.responses.parse(input=checks.CITY_QUESTION, text_format=City, **asked)
    assert isinstance(parsed.output_parsed, City)
    tool = {"type": "function", "strict": True, **CITY_TOOL["function"]}
    called = client.responses.create(
        input=checks.CITY_QUESTION, tools=[tool], tool_choice="required", **asked
    )
    City.model_validate_json(called.output[0].arguments, strict=True)
    client.responses.delete(first.id)
    with checks.raises(openai.NotFoundError, "response_not_found"):
        client.responses.retrieve(first.id)
    in_the_background(asked)


def in_the_background(asked: dict[str, object]) -> None:
    """A stream that is left goes on by number; a response that is cancelled ends."""
    made = client.responses.create(
        input=checks.QUESTION, background=True, stream=True, extra_body=ENDLESS, **asked
    )
    seen = [event for event, _ in zip(made, range(8), strict=False)]
    made.close()
    rest = client.responses.retrieve(
        seen[0].response.id, stream=True, starting_after=seen[-1].sequence_number
    )
    seen += rest
    assert [each.sequence_number for each in seen] == list(range(len(seen)))
    assert seen[-1].response.status == "incomplete"
    asked = asked | {"max_output_tokens": ENDLESS_TOKENS}
    endless = client.responses.create(
        input=checks.QUESTION, background=True, extra_body=ENDLESS, **asked
    )
    assert client.responses.cancel(endless.id).status == "cancelled"


checks.run("openai", chat, stream, tools, json_schema, logprobs, error, cancel, responses)
