"""LiteLLM, as a library: it rewrites every reply into its own classes, and errors into its own."""

import asyncio
from typing import Any

import checks
import litellm
from checks import CITY_MESSAGES, CITY_TOOL, ENDLESS, ENDLESS_TOKENS, MESSAGES, MODEL, City

litellm.telemetry = False
NAME = f"openai/{MODEL}"
PLACE: Any = {"api_base": checks.BASE_URL, "api_key": checks.KEY, "max_retries": 0, "timeout": 60}


def ask(messages: Any, **fields: Any) -> Any:
    return litellm.completion(model=NAME, messages=messages, temperature=0, **fields, **PLACE)


def chat() -> None:
    reply = ask(MESSAGES, max_tokens=16)
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def stream() -> None:
    chunks = list(ask(MESSAGES, max_tokens=16, stream=True, stream_options={"include_usage": True}))
    whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    assert sum(bool(each.choices and each.choices[0].delta.content) for each in chunks) > 1
    assert whole.choices[0].message.content
    assert whole.choices[0].finish_reason in ("stop", "length")
    assert 0 < whole.usage.completion_tokens <= 16


def tools() -> None:
    asked = {"max_tokens": 200, "tools": [CITY_TOOL], "tool_choice": "required"}
    reply = ask(CITY_MESSAGES, **asked).choices[0]
    assert reply.finish_reason == "tool_calls"
    City.model_validate_json(reply.message.tool_calls[0].function.arguments, strict=True)
    chunks = list(ask(CITY_MESSAGES, **asked, stream=True))
    streamed = litellm.stream_chunk_builder(chunks, messages=CITY_MESSAGES).choices[0]
    assert streamed.finish_reason == "tool_calls"
    City.model_validate_json(streamed.message.tool_calls[0].function.arguments, strict=True)


def json_schema() -> None:
    reply = ask(CITY_MESSAGES, max_tokens=200, response_format=City)
    City.model_validate_json(reply.choices[0].message.content, strict=True)


def logprobs() -> None:
    reply = ask(MESSAGES, max_tokens=6, logprobs=True, top_logprobs=3)
    tokens = reply.choices[0].logprobs.content
    assert len(tokens) == reply.usage.completion_tokens
    assert all(len(token.top_logprobs) == 3 for token in tokens)


def error() -> None:
    with checks.raises(litellm.NotFoundError, "gpt-0"):
        litellm.completion(model="openai/gpt-0", messages=MESSAGES, **PLACE)
    with checks.raises(litellm.ContextWindowExceededError):
        ask([{"role": "user", "content": checks.LONG_QUESTION}])


def cancel() -> None:
    with checks.left_early():
        asyncio.run(give_up())


async def give_up() -> None:
    """Leave a stream after its first chunk, as a proxy does whose own client left."""

    async def read() -> None:
        chunks = await litellm.acompletion(
            model=NAME,
            messages=MESSAGES,
            max_tokens=ENDLESS_TOKENS,
            stream=True,
            extra_body=ENDLESS,
            **PLACE,
        )
        async for _ in chunks:
            started.set()

    started = asyncio.Event()
    reading = asyncio.create_task(read())
    await asyncio.wait_for(started.wait(), 60)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert reading.cancelled()


checks.run("litellm", chat, stream, tools, json_schema, logprobs, error, cancel)
