"""OpenAI's agents: streamed runs, over responses and over chats."""

import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from loop import BASE_URL, KEY, MODEL, QUESTION, told, weather
from openai import AsyncOpenAI


async def run(kind: type[OpenAIResponsesModel] | type[OpenAIChatCompletionsModel]) -> None:
    client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY)
    agent = Agent(
        name="agent", tools=[function_tool(weather)], model=kind(MODEL, openai_client=client)
    )
    result = Runner.run_streamed(agent, QUESTION)
    async for _ in result.stream_events():
        pass
    told(result.final_output)


set_tracing_disabled(True)
asyncio.run(run(OpenAIResponsesModel))
asyncio.run(run(OpenAIChatCompletionsModel))
