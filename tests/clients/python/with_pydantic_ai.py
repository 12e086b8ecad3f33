"""Pydantic AI: agents, whose answers are checked against types."""

import asyncio
from typing import Any

import checks
from checks import CITY_QUESTION, ENDLESS, ENDLESS_TOKENS, MODEL, QUESTION, City
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, ToolOutput
from pydantic_ai.direct import model_request_sync
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


def model(name: str = MODEL) -> OpenAIChatModel:
    return OpenAIChatModel(
        name, provider=OpenAIProvider(base_url=checks.BASE_URL, api_key=checks.KEY)
    )


def agent(name: str = MODEL, **fields: Any) -> Agent[None, Any]:
    return Agent(model(name), **fields)


def settings(tokens: int, **fields: Any) -> Any:
    return {"max_tokens": tokens, "temperature": 0, **fields}


def chat() -> None:
    done = agent().run_sync(QUESTION, model_settings=settings(16))
    assert done.output
    assert done.response.finish_reason in ("stop", "length")
    assert 0 < done.response.usage.output_tokens <= 16


def stream() -> None:
    async def read() -> list[str]:
        async with agent().run_stream(QUESTION, model_settings=settings(16)) as reply:
            return [text async for text in reply.stream_text(delta=True, debounce_by=None)]

    assert sum(bool(text) for text in asyncio.run(read())) > 1


def tools() -> None:
    kept: list[City] = []
    keeping = agent(output_type=ToolOutput(City))

    @keeping.tool_plain
    def keep(city: City) -> str:
        """Keep a city for later."""
        kept.append(city)
        return "kept"

    asked = settings(200, parallel_tool_calls=False)
    done = keeping.run_sync(CITY_QUESTION, model_settings=asked)
    assert isinstance(done.output, City)
    calls = [part for message in done.all_messages() for part in message.parts]
    assert sum(part.part_kind == "tool-call" for part in calls) == len(kept) + 1


def json_schema() -> None:
    done = agent(output_type=NativeOutput(City)).run_sync(
        CITY_QUESTION, model_settings=settings(200)
    )
    assert isinstance(done.output, City)


def logprobs() -> None:
    reply = model_request_sync(
        model(),
        [ModelRequest.user_text_prompt(QUESTION)],
        model_settings=settings(6, openai_logprobs=True, openai_top_logprobs=3),
    )
    tokens = reply.provider_details["logprobs"]
    assert len(tokens) == reply.usage.output_tokens
    assert all(len(token["top_logprobs"]) == 3 for token in tokens)


def error() -> None:
    with checks.raises(ModelHTTPError, "404", "model_not_found"):
        agent("gpt-0").run_sync(QUESTION)
    with checks.raises(ModelHTTPError, "400", "context_length_exceeded"):
        agent().run_sync(checks.LONG_QUESTION)


def cancel() -> None:
    async def read() -> None:
        asked = settings(ENDLESS_TOKENS, extra_body=ENDLESS)
        async with agent().run_stream(QUESTION, model_settings=asked) as reply:
            async for _ in reply.stream_text(delta=True, debounce_by=None):
                started.set()

    async def give_up() -> None:
        reading = asyncio.create_task(read())
        await asyncio.wait_for(started.wait(), 60)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)

    started = asyncio.Event()
    with checks.left_early():
        asyncio.run(give_up())


checks.run("pydantic-ai-slim", chat, stream, tools, json_schema, logprobs, error, cancel)
