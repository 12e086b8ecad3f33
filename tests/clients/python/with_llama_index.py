"""LlamaIndex's OpenAILike, which it has for servers like this one."""

import asyncio
from typing import Any

import checks
import openai
from checks import CITY_QUESTION, ENDLESS, ENDLESS_TOKENS, MODEL, QUESTION, City
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike

ASKED = [ChatMessage(role="user", content=QUESTION)]


def model(**fields: Any) -> OpenAILike:
    given: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 200, **fields}
    return OpenAILike(
        api_base=checks.BASE_URL,
        api_key=checks.KEY,
        max_retries=0,
        timeout=60,
        **{"is_chat_model": True, "is_function_calling_model": True, **given},
    )


def completing(**fields: Any) -> OpenAILike:
    """What it is unless told otherwise: it sends prompts, not chats."""
    return model(is_chat_model=False, is_function_calling_model=False, **fields)


def chat() -> None:
    reply = model(max_tokens=16).chat(ASKED)
    assert reply.message.content
    assert reply.raw.choices[0].finish_reason in ("stop", "length")
    assert 0 < reply.additional_kwargs["completion_tokens"] <= 16
    assert completing(max_tokens=8).complete("Once upon a time").text


def stream() -> None:
    usage = {"stream_options": {"include_usage": True}}
    chunks = list(model(max_tokens=16, additional_kwargs=usage).stream_chat(ASKED))
    assert sum(bool(each.delta) for each in chunks) > 1
    assert chunks[-1].message.content == "".join(each.delta for each in chunks)
    assert 0 < chunks[-1].additional_kwargs["completion_tokens"] <= 16
    texts = [each.delta for each in completing(max_tokens=8).stream_complete("Once upon a time")]
    assert sum(bool(text) for text in texts) > 1


def tools() -> None:
    kept: list[City] = []

    def keep(**fields: Any) -> str:
        kept.append(City.model_validate(fields))
        return "kept"

    tool = FunctionTool.from_defaults(
        keep, name="keep_city", description="Keep a city for later.", fn_schema=City
    )
    served = model()
    asked = ChatMessage(role="user", content=CITY_QUESTION)
    reply = served.chat_with_tools([tool], asked, tool_required=True)
    assert reply.raw.choices[0].finish_reason == "tool_calls"
    (call,) = served.get_tool_calls_from_response(reply)
    assert call.tool_name == "keep_city"
    City.model_validate(call.tool_kwargs)
    *_, last = served.stream_chat_with_tools([tool], asked, tool_required=True)
    (streamed,) = served.get_tool_calls_from_response(last)
    City.model_validate(streamed.tool_kwargs)
    served.predict_and_call([tool], asked, tool_required=True, error_on_tool_error=True)
    assert len(kept) == 1
    result = ChatMessage(
        role="tool", content="kept", additional_kwargs={"tool_call_id": call.tool_id}
    )
    again = model(max_tokens=8).chat_with_tools(
        [tool], chat_history=[asked, reply.message, result], tool_choice="none"
    )
    assert not served.get_tool_calls_from_response(again, error_on_no_tool_call=False)


def json_schema() -> None:
    structured = model(should_use_structured_outputs=True)
    question = PromptTemplate(CITY_QUESTION)
    assert isinstance(structured.structured_predict(City, question), City)
    *before, last = structured.stream_structured_predict(City, question)
    assert before
    City.model_validate(last.model_dump())


def logprobs() -> None:
    reply = model(max_tokens=6, logprobs=True, top_logprobs=3).chat(ASKED)
    assert len(reply.logprobs) == reply.additional_kwargs["completion_tokens"]
    assert all(len(token) == 3 for token in reply.logprobs)
    completed = completing(max_tokens=6, logprobs=True, top_logprobs=3).complete("Once upon a time")
    assert len(completed.logprobs) == completed.additional_kwargs["completion_tokens"]
    assert all(each.logprob <= 0 for token in completed.logprobs for each in token)


def error() -> None:
    with checks.raises(openai.NotFoundError, "model_not_found"):
        model(model="gpt-0").chat(ASKED)
    with checks.raises(openai.BadRequestError, "context_length_exceeded"):
        model().chat([ChatMessage(role="user", content=checks.LONG_QUESTION)])


def cancel() -> None:
    endless = model(max_tokens=ENDLESS_TOKENS, additional_kwargs={"extra_body": ENDLESS})
    # By a task: a stream that is only closed keeps its connection until garbage is collected.
    with checks.left_early():
        asyncio.run(give_up(endless))


async def give_up(endless: OpenAILike) -> None:
    """Cancel a task that reads a stream, as a web application does whose own client left."""

    async def read() -> None:
        async for _ in await endless.astream_chat(ASKED):
            started.set()

    started = asyncio.Event()
    reading = asyncio.create_task(read())
    await asyncio.wait_for(started.wait(), 60)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert reading.cancelled()


checks.run(
    "llama-index-llms-openai-like", chat, stream, tools, json_schema, logprobs, error, cancel
)
