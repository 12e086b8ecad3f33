"""Pydantic AI: streamed runs over messages, chats and responses."""

import asyncio

from loop import BASE_URL, KEY, MODEL, QUESTION, URL, told, weather
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


async def run(model: Model) -> None:
    agent = Agent(model, tools=[weather])
    async with agent.iter(QUESTION) as steps:
        async for step in steps:
            if Agent.is_model_request_node(step):
                async with step.stream(steps.ctx) as stream:
                    async for _ in stream:
                        pass
    assert steps.result is not None
    told(steps.result.output)


openai = OpenAIProvider(base_url=BASE_URL, api_key=KEY)
asyncio.run(run(AnthropicModel(MODEL, provider=AnthropicProvider(base_url=URL, api_key=KEY))))
asyncio.run(run(OpenAIChatModel(MODEL, provider=openai)))
asyncio.run(run(OpenAIResponsesModel(MODEL, provider=openai)))
