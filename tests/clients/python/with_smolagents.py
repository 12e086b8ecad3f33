"""Hugging Face's smolagents: its model for servers like this one, and an agent that calls tools."""

from typing import Any, ClassVar

import checks
import openai
from checks import CITY_QUESTION, ENDLESS, ENDLESS_TOKENS, MODEL, QUESTION, City
from smolagents import LogLevel, OpenAIServerModel, Tool, ToolCallingAgent
from smolagents.models import CODEAGENT_RESPONSE_FORMAT, agglomerate_stream_deltas


def model(**fields: Any) -> OpenAIServerModel:
    given: dict[str, Any] = {"model_id": MODEL, "temperature": 0, "max_tokens": 200, **fields}
    return OpenAIServerModel(
        api_base=checks.BASE_URL,
        api_key=checks.KEY,
        client_kwargs={"max_retries": 0, "timeout": 60},
        **given,
    )


def asked(question: str) -> Any:
    """A question in the form that its agents send: a list of parts."""
    return [{"role": "user", "content": [{"type": "text", "text": question}]}]


class KeepCity(Tool):
    """The tool of `checks.CITY_TOOL`, with the descriptions that smolagents insists on."""

    name = "keep_city"
    description = "Keep a city for later."
    inputs: ClassVar = {
        "name": {"type": "string", "maxLength": 20, "description": "what it is called"},
        "size": {"type": "string", "enum": ["small", "large"], "description": "how large it is"},
        "rivers": {"type": "integer", "minimum": 0, "maximum": 9, "description": "how many"},
    }
    output_type = "string"

    def forward(self, name: str, size: str, rivers: int) -> str:
        return f"{name} was kept"


def chat() -> None:
    reply = model(max_tokens=16).generate(asked(QUESTION), stop_sequences=["Observation:"])
    assert reply.role == "assistant"
    assert reply.content
    assert reply.raw.choices[0].finish_reason in ("stop", "length")
    assert 0 < reply.token_usage.output_tokens <= 16


def stream() -> None:
    deltas = list(model(max_tokens=16).generate_stream(asked(QUESTION)))
    assert sum(bool(delta.content) for delta in deltas) > 1
    whole = agglomerate_stream_deltas(deltas)
    assert whole.token_usage.input_tokens > 0
    assert 0 < whole.token_usage.output_tokens <= 16


def tools() -> None:
    fields = {"tools_to_call_from": [KeepCity()], "parallel_tool_calls": False}
    reply = model().generate(asked(CITY_QUESTION), **fields)
    assert reply.raw.choices[0].finish_reason == "tool_calls"
    (call,) = reply.tool_calls
    assert call.function.name == "keep_city"
    City.model_validate_json(call.function.arguments, strict=True)
    deltas = list(model().generate_stream(asked(CITY_QUESTION), **fields))
    (streamed,) = agglomerate_stream_deltas(deltas).tool_calls
    City.model_validate_json(streamed.function.arguments, strict=True)
    # Whichever tools this model calls: the agent itself has one for its answer.
    agent = ToolCallingAgent([KeepCity()], model(), max_steps=2, verbosity_level=LogLevel.OFF)
    assert agent.run(CITY_QUESTION)
    first = agent.memory.steps[1]
    # On some processors this model answers and calls another tool at once, which the agent refuses.
    assert first.tool_calls or "any other tool calls" in str(first.error)


def json_schema() -> None:
    schema = {"name": "City", "schema": City.model_json_schema(), "strict": True}
    wanted = {"type": "json_schema", "json_schema": schema}
    reply = model().generate(asked(CITY_QUESTION), response_format=wanted)
    City.model_validate_json(reply.content, strict=True)
    # What its CodeAgent sends. This model repeats itself in the first string, so a start must do.
    reply = model(max_tokens=8).generate(
        asked(CITY_QUESTION), response_format=CODEAGENT_RESPONSE_FORMAT
    )
    assert reply.content.startswith("{")


def logprobs() -> None:
    reply = model(max_tokens=6).generate(asked(QUESTION), logprobs=True, top_logprobs=3)
    tokens = reply.raw.choices[0].logprobs.content
    assert len(tokens) == reply.token_usage.output_tokens
    assert all(len(token.top_logprobs) == 3 for token in tokens)


def error() -> None:
    with checks.raises(openai.NotFoundError, "model_not_found"):
        model(model_id="gpt-0").generate(asked(QUESTION))
    with checks.raises(openai.BadRequestError, "context_length_exceeded"):
        model().generate(asked(checks.LONG_QUESTION))


def cancel() -> None:
    with checks.left_early():
        endless = model(max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS)
        deltas = endless.generate_stream(asked(QUESTION))
        next(deltas)
        # A stream that is only closed keeps its connection until garbage is collected.
        endless.client.close()


checks.run("smolagents", chat, stream, tools, json_schema, logprobs, error, cancel)
