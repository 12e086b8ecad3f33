"""OpenAI's own: a loop over chats, and one over responses, both streamed."""

import json
from typing import Any

from loop import BASE_URL, KEY, MODEL, QUESTION, SCHEMA, told, weather
from openai import OpenAI

client = OpenAI(base_url=BASE_URL, api_key=KEY)
function: Any = {"name": "weather", "parameters": SCHEMA, "strict": True}


def over_chats() -> None:
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"type": "function", "function": function}]
    for _ in range(2):
        with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools) as stream:
            list(stream)
            message = stream.get_final_completion().choices[0].message
        messages.append(message)
        for call in message.tool_calls or []:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    told(message.content)


def over_responses() -> None:
    items: Any = [{"role": "user", "content": QUESTION}]
    tools: Any = [{"type": "function", **function}]
    more: Any = {}
    for _ in range(2):
        with client.responses.stream(model=MODEL, input=items, tools=tools, **more) as stream:
            list(stream)
            response = stream.get_final_response()
        more = {"previous_response_id": response.id}
        items = [
            {
                "type": "function_call_output",
                "call_id": item.call_id,
                "output": weather(**json.loads(item.arguments)),
            }
            for item in response.output
            if item.type == "function_call"
        ]
    told(response.output_text)


over_chats()
over_responses()
