"""OpenAI's Agents SDK, which speaks Responses: an agent that calls a tool, streamed and not."""

import asyncio
from typing import Annotated, Any, Literal

import checks
import openai
from agents import (
    Agent,
    AgentOutputSchema,
    ModelSettings,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import CITY_QUESTION, MODEL, QUESTION, City
from pydantic import Field

set_tracing_disabled(True)


class KeptCity(Exception):
    """The tool was called: whatever a small model says after it."""


def model(name: str = MODEL) -> OpenAIResponsesModel:
    client = openai.AsyncOpenAI(
        base_url=checks.BASE_URL, api_key=checks.KEY, max_retries=0, timeout=60
    )
    return OpenAIResponsesModel(model=name, openai_client=client)


FIRST_SENTENCE = {"extra_body": {"stop": ["."]}}
"""Its loop takes an answer that was cut for a failure, so there is no limit on the tokens."""


def agent(**fields: Any) -> Agent:
    settings = ModelSettings(temperature=0, **fields)
    return Agent(name="guide", instructions="Be short.", model=model(), model_settings=settings)


def chat() -> None:
    answer = Runner.run_sync(agent(**FIRST_SENTENCE), QUESTION)
    assert answer.final_output
    again = Runner.run_sync(
        agent(**FIRST_SENTENCE), "And why?", previous_response_id=answer.last_response_id
    )
    assert again.final_output
    first, second = answer.raw_responses[0].usage, again.raw_responses[0].usage
    assert second.input_tokens > first.total_tokens


async def streamed() -> list[str]:
    events = Runner.run_streamed(agent(**FIRST_SENTENCE), QUESTION)
    kinds = [each.data.type async for each in events.stream_events() if hasattr(each, "data")]
    assert events.final_output
    return kinds


def stream() -> None:
    assert asyncio.run(streamed()).count("response.output_text.delta") > 1


def tools() -> None:
    kept: list[City] = []

    @function_tool(failure_error_function=None)
    def keep_city(
        name: Annotated[str, Field(max_length=20)],
        size: Literal["small", "large"],
        rivers: Annotated[int, Field(ge=0, le=9)],
    ) -> str:
        """Keep a city for later."""
        kept.append(City(name=name, size=size, rivers=rivers))
        raise KeptCity("KeptCity")

    guide = agent(tool_choice="required", parallel_tool_calls=False, max_tokens=400)
    guide.tools.append(keep_city)
    with checks.raises(Exception, "KeptCity"):
        Runner.run_sync(guide, CITY_QUESTION, max_turns=2)
    assert kept


def json_schema() -> None:
    guide = agent()
    guide.output_type = AgentOutputSchema(City)
    assert isinstance(Runner.run_sync(guide, CITY_QUESTION).final_output, City)


def error() -> None:
    stranger = agent()
    stranger.model = model("gpt-0")
    with checks.raises(openai.NotFoundError, "model_not_found"):
        Runner.run_sync(stranger, QUESTION)
    with checks.raises(openai.BadRequestError, "context_length_exceeded"):
        Runner.run_sync(agent(), checks.LONG_QUESTION)


checks.run("openai-agents", chat, stream, tools, json_schema, error)
