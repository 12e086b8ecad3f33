"""Instructor: typed answers, by tools or by JSON schemas."""

from typing import Any

import checks
import instructor
import openai
from checks import CITY_MESSAGES, ENDLESS, ENDLESS_TOKENS, MESSAGES, MODEL, City

plain = openai.OpenAI(base_url=checks.BASE_URL, api_key=checks.KEY, max_retries=0, timeout=60)
by_tools = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
by_schema = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
CITY: Any = {"model": MODEL, "messages": CITY_MESSAGES, "max_tokens": 200, "temperature": 0}


def chat() -> None:
    reply = by_tools.chat.completions.create(
        model=MODEL, messages=MESSAGES, response_model=None, max_tokens=16, temperature=0
    )
    assert reply.choices[0].message.content
    assert reply.choices[0].finish_reason in ("stop", "length")


def stream() -> None:
    parts = list(by_schema.chat.completions.create_partial(response_model=City, **CITY))
    assert len(parts) > 1
    City.model_validate(parts[-1].model_dump())


def tools() -> None:
    made, reply = by_tools.chat.completions.create_with_completion(response_model=City, **CITY)
    assert isinstance(made, City)
    assert reply.choices[0].message.tool_calls[0].function.name == "City"


def json_schema() -> None:
    made, reply = by_schema.chat.completions.create_with_completion(response_model=City, **CITY)
    assert isinstance(made, City)
    assert reply.choices[0].message.tool_calls is None


def logprobs() -> None:
    _, reply = by_schema.chat.completions.create_with_completion(
        response_model=City, logprobs=True, top_logprobs=3, **CITY
    )
    tokens = reply.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) == reply.choices[0].message.content
    assert all(token.logprob <= 0 for token in tokens)


def error() -> None:
    with checks.raises(Exception, "model_not_found"):
        by_tools.chat.completions.create(response_model=City, **{**CITY, "model": "gpt-0"})
    long = [{"role": "user", "content": checks.LONG_QUESTION}]
    with checks.raises(Exception, "context_length_exceeded"):
        by_tools.chat.completions.create(response_model=City, **{**CITY, "messages": long})


def cancel() -> None:
    with checks.left_early():
        chunks = by_tools.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            response_model=None,
            max_tokens=ENDLESS_TOKENS,
            stream=True,
            extra_body=ENDLESS,
        )
        next(iter(chunks))
        chunks.close()


checks.run("instructor", chat, stream, tools, json_schema, logprobs, error, cancel)
