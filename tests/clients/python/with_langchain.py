"""LangChain's ChatOpenAI."""

from typing import Any

import checks
import openai
from checks import CITY_QUESTION, ENDLESS, ENDLESS_TOKENS, MODEL, QUESTION, City
from langchain_openai import ChatOpenAI


def model(**fields: Any) -> ChatOpenAI:
    given: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 200, **fields}
    return ChatOpenAI(
        base_url=checks.BASE_URL, api_key=checks.KEY, max_retries=0, timeout=60, **given
    )


def chat() -> None:
    reply = model(max_tokens=16).invoke(QUESTION)
    assert reply.content
    assert reply.response_metadata["finish_reason"] in ("stop", "length")
    assert reply.usage_metadata["total_tokens"] > reply.usage_metadata["output_tokens"] > 0
    assert len(model(max_tokens=4).batch([QUESTION] * 3)) == 3


def stream() -> None:
    chunks = list(model(max_tokens=16, stream_usage=True).stream(QUESTION))
    assert sum(bool(each.content) for each in chunks) > 1
    whole = sum(chunks[1:], chunks[0])
    assert whole.response_metadata["finish_reason"] in ("stop", "length")
    assert 0 < whole.usage_metadata["output_tokens"] <= 16


def tools() -> None:
    bound = model().bind_tools([City], tool_choice="required", parallel_tool_calls=False)
    reply = bound.invoke(CITY_QUESTION)
    City.model_validate(reply.tool_calls[0]["args"])
    assert reply.response_metadata["finish_reason"] == "tool_calls"
    chunks = list(bound.stream(CITY_QUESTION))
    City.model_validate(sum(chunks[1:], chunks[0]).tool_calls[0]["args"])


def json_schema() -> None:
    made = model().with_structured_output(City, method="json_schema").invoke(CITY_QUESTION)
    assert isinstance(made, City)


def logprobs() -> None:
    reply = model(max_tokens=6, logprobs=True, top_logprobs=3).invoke(QUESTION)
    tokens = reply.response_metadata["logprobs"]["content"]
    assert len(tokens) == reply.usage_metadata["output_tokens"]
    assert all(len(token["top_logprobs"]) == 3 for token in tokens)


def error() -> None:
    with checks.raises(openai.NotFoundError, "model_not_found"):
        model(model="gpt-0").invoke(QUESTION)
    with checks.raises(openai.BadRequestError, "context_length_exceeded"):
        model().invoke(checks.LONG_QUESTION)


def cancel() -> None:
    with checks.left_early():
        chunks = model(max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS).stream(QUESTION)
        next(chunks)
        chunks.close()


checks.run("langchain-openai", chat, stream, tools, json_schema, logprobs, error, cancel)
