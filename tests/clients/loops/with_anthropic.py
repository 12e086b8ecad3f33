"""Anthropic's own: a streamed loop."""

from typing import Any

from anthropic import Anthropic
from loop import KEY, MODEL, QUESTION, SCHEMA, URL, told, weather

client = Anthropic(base_url=URL, api_key=KEY)
messages: list[Any] = [{"role": "user", "content": QUESTION}]
tools: Any = [{"name": "weather", "input_schema": SCHEMA}]
for _ in range(2):
    with client.messages.stream(
        model=MODEL, max_tokens=500, messages=messages, tools=tools
    ) as stream:
        message = stream.get_final_message()
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": weather(**block.input)}
        for block in message.content
        if block.type == "tool_use"
    ]
    messages += [{"role": "assistant", "content": message.content}]
    messages += [{"role": "user", "content": results}]
assert message.usage.cache_read_input_tokens, message.usage
told(message.content[0].text)
